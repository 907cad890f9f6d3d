"""What runs on an edge server: tours and the gate; estimators and arrangers."""
