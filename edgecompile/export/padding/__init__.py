"""A proof that padding changes nothing, and trials drawn against it."""
