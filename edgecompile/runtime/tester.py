"""``python -m edgecompile.runtime.tester ARGUMENTS``: a self-test that waits for a byte on stdin.

It starts while the version is still copied, and imports numpy meanwhile. No file of the version is opened before.
"""

import sys

from .__main__ import main
from .commands import selftest  # noqa: F401
from .model import model  # noqa: F401

if __name__ == "__main__":
    # Without the byte, the installer has ended, or the version was refused before.
    sys.exit(main(sys.argv[1:]) if sys.stdin.buffer.read(1) else 1)
