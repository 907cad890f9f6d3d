"""The edge server: leads models along tours of devices, gates what comes back, passes releases on."""
