"""torch.export with dynamic sizes, checked against eager."""
