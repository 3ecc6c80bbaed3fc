"""Weights in bfloat16 and int8: what a model bears."""
