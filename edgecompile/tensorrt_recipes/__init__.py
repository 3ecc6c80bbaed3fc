"""The parts of a bundle that a TensorRT engine is built from."""
