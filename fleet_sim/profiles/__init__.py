"""How fast boards and their links are, and how long training takes on them."""
