"""Running a coordinator: its process, settings, back-ups, and who may connect."""
