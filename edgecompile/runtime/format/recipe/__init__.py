"""The recipe from which a device builds a TensorRT engine."""
