"""Loads checkpoints whose weights are quantized already."""
