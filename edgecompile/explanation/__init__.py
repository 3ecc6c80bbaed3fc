"""Explains why a model is refused or slow."""
