"""The edge server: tours, the gate, estimators and arrangers."""
