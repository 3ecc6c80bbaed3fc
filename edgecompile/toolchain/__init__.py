"""Compilers, and the native runtime that they make."""
