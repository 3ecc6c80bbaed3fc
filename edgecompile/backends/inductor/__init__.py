"""AOTInductor: its private hooks, its generated source and its failures."""
