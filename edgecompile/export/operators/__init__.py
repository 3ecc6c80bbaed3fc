"""Custom operators that exported programs hold."""
