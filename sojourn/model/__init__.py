"""Models as all roles use them: vectors, graphs for onnxruntime, exemplars and scores."""
