"""Rewrites of the graph to the runtime's operators."""
