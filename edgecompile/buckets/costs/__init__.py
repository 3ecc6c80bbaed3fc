"""The costs of runs by their sizes."""
