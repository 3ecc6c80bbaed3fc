"""Reads built libraries and judges them by their target."""
