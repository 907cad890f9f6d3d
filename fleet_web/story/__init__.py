"""What the page of a job tells, built alike from a coordinator's answers and from the tables of a folder."""
