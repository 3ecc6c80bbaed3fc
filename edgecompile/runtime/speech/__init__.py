"""Text from recordings."""
