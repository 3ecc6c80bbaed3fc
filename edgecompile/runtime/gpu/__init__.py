"""Engines for a GPU: the device, CUDA, TensorRT, and the programs that run them."""
