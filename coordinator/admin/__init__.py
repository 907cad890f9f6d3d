"""The administration of a coordinator: its process, its settings, back-ups, and its fleet's members."""
