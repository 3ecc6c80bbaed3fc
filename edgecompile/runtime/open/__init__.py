"""Opening a bundle: the choice of a variant, and the bundle that is open."""
