"""Finishers, which compute a result from all members' models together: one file for each."""
