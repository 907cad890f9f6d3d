"""What a simulation or a job leaves: its folder of tables, sums over sites and devices, pictures, a page."""
