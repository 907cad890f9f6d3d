"""Release creation from a job or an ONNX file: checked, measured, described and signed."""
