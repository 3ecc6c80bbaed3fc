"""One call of a model: its inputs, the bucket that takes them, its outputs."""
