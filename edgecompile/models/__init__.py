"""A loaded model: its inputs, outputs, axes and module."""
