"""Versions of models on a device: installed side by side, switched at once, tried, confirmed or taken back."""
