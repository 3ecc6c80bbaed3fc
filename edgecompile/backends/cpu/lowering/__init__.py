"""Rewrites of a graph to the operators of the native runtime."""
