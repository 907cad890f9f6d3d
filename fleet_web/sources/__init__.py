"""The data sources of the pages: a running coordinator, or folders of results."""
