"""Sequence lengths of traffic: their distribution, and the files and texts it is read from."""
