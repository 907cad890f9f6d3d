"""Before an agent runs for the first time: init, preflight, and a profile of the machine."""
