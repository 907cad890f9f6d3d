"""Page models, built the same way from a coordinator's replies and from the tables of a folder."""
