"""Texts, by a bundle's tokenizer."""
