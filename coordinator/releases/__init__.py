"""Making a release: of a job or of an ONNX file, checked, measured, described, signed."""
