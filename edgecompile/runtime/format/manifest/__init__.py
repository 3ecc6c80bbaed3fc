"""The manifest of a bundle: its schema, and a reader for each of its sections."""
