"""The commands of ``python -m edgecompile.runtime``, except those that measure."""
