"""The simulated world: every node on a virtual clock, the availability of devices, and the duration of visits."""
