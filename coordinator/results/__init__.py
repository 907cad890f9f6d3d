"""The results of a simulation or a job: its folder of tables, totals by site and device, pictures, and a page."""
