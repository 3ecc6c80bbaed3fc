"""``python -m edgecompile``: the command line without its script."""

from edgecompile.cli import main

if __name__ == "__main__":
    main()
