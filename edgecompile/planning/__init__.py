"""Measures or models costs, and plans with them."""
