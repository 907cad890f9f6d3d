"""Tables of papers, run again from their folders: `sojourn papers`."""
