"""`sojourn web`: the page on which a fleet is seen, live from a coordinator or from a folder of results."""
