"""Bundles as container images, in the OCI's image layout."""
