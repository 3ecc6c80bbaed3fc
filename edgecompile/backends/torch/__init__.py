"""The backend ``torch``: AOTInductor's C++ with torch's own kernels."""
