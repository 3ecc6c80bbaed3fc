"""``edgecompile keygen|sign|verify-signature``."""
