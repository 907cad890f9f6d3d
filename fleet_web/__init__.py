"""`sojourn web`: a web page that shows a fleet, live from a coordinator or from a folder of results."""
