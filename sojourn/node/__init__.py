"""The runtime of a role: machines without I/O, the node around them, its driver and workers, the exchange of blobs."""
