"""Writes, reads and verifies bundles."""
