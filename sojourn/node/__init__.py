"""What runs a role: machines without I/O, the node around them, the driver, workers, and what all roles do alike."""
