"""Compares a bundle with eager and other engines."""
