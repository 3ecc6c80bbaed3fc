"""Options that commands share, and how their values are read."""
