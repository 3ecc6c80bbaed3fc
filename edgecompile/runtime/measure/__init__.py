"""Measurements: time per length, cold start, calibration and profile."""
