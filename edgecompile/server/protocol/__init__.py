"""Bytes to arrays and back, for each protocol; nothing here runs a model or waits."""
