"""Who may see the pages, and from where."""
