"""Targets: what a bundle is built for, read from profiles."""
