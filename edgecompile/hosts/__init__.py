"""The build host: its CPU, its identity, and the code that it can run."""
