"""The pages and plots of plans and bundles."""
