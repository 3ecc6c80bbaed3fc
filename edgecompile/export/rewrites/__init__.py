"""torch's functions that fix a varying size when they are traced, computed by others that don't."""
