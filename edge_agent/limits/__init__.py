"""What an owner allows training to take of a device, and how that is kept to."""
