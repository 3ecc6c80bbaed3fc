"""The build host: its CPU, its identity, and what it can run."""
