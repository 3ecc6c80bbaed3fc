"""Programs of Triton kernels: on a GPU over CUDA's driver alone."""
