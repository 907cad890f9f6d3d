"""What a simulation leaves: its folder of tables, sums over sites and devices, pictures, and a page that shows them."""
