"""What the owner of a device is shown of what others may do with it."""
