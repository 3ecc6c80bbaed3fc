"""``python -m edgecompile.torch_runtime``: the runtime's commands, for bundles that torch runs."""

from __future__ import annotations

import sys

from edgecompile.runtime.__main__ import main, make_parser

from .loader import COMMAND

if __name__ == "__main__":
    sys.exit(main(parser=make_parser(f"python -m {COMMAND}")))
