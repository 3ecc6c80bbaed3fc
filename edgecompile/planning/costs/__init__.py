"""The costs of a plan: measured here or on a device, kept, or modelled by a roofline."""
