"""edgecompile: ahead-of-time compiled, length-bucketed PyTorch models that run without PyTorch.

This module is shipped to devices inside every bundle, so it imports nothing.
"""

__version__ = "0.1.0"
