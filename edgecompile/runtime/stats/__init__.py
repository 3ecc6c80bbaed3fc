"""Counters of what a model ran, and the files they are written to."""
