"""The content that docs/make_vectors.py writes: test vectors for each part of the protocol, and the page's examples."""
