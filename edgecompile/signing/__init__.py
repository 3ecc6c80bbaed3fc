"""Signs bundles where they are built: keys, signatures, releases."""
