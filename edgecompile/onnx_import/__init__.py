"""Reads ONNX files as torch modules whose sizes stay symbolic."""
