"""The place of arrangers before `hierarchy.arranging`: kept for arrangers that users wrote."""
