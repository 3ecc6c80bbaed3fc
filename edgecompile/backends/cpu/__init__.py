"""The CPU backend: AOTInductor's C++ with the native runtime's kernels."""
