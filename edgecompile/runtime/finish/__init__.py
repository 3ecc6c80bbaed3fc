"""Building and testing a device's TensorRT engine."""
