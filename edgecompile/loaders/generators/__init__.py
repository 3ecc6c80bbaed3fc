"""Models that generate: one step with a cache as a program."""
