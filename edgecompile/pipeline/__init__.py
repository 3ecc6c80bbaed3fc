"""The build: its stages in order."""
