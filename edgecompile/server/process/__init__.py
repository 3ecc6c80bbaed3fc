"""The processes: one that owns the sockets, and workers that may die."""
