"""Compares the lengths that devices count with those planned for."""
