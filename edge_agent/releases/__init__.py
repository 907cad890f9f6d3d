"""How a device takes signed releases: ordered, fetched, tried, served."""
