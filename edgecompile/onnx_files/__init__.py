"""ONNX files for TensorRT: made, narrowed and checked on the build host."""
