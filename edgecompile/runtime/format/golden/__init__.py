"""Golden vectors, and the comparison of outputs with them."""
