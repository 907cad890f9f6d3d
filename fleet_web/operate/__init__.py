"""What a person may do from a page, where that was allowed on the command line."""
