"""GPUs without TensorRT: Inductor's Triton code, generated and compiled on hosts without a GPU."""
