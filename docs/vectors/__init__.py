"""What docs/make_vectors.py writes: the test vectors, a file for each part of the protocol, and the page's examples."""
