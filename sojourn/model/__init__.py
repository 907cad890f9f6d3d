"""A model as every role handles it: vectors, graphs on onnxruntime, exemplars and scores."""
