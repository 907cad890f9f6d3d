"""Results that lie in a folder, as if a coordinator told them."""
