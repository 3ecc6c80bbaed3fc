"""``edgecompile keygen|sign|verify-signature|sbom``."""
