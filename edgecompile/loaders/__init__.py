"""Loads models from folders, factories and saved programs."""
