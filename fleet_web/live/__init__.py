"""What a coordinator tells, over one connection that all open pages share."""
