"""Buckets: the ranges of lengths that get a program each, and the plan that chooses them."""
