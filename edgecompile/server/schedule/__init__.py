"""Scheduling of requests: costs, composition, admission, streams."""
