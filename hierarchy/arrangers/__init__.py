"""How client sets are made: one file for each way, and what they share. `hierarchy.arrangement` chooses among them."""
