"""The files of a bundle: opened, hashed and mapped."""
