"""What is made of all members' models at once: one file for each finisher."""
