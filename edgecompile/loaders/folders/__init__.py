"""Loads models from folders in Hugging Face layout."""
