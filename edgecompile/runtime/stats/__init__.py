"""Counters of a model's runs, and the files they are written to."""
