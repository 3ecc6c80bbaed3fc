"""Signatures over a bundle, and the keys that a device trusts."""
