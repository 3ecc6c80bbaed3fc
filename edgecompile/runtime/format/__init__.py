"""The files of a bundle: their schema, their readers and their checks."""
