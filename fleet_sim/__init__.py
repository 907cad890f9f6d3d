"""All roles on one workstation, under a virtual clock."""
