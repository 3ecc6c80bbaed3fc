"""The terminal: how commands speak to people and to programs."""
