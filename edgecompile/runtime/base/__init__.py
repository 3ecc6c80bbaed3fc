"""Errors, limits and lifetimes: what all parts of the runtime build on."""
