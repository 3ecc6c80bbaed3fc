"""Triton kernels of our own, as operators that Inductor takes into its graph."""
