"""``python -m edgecompile.torch_runtime``: the runtime's commands, for bundles that torch runs."""

from __future__ import annotations

import sys

from edgecompile.runtime.__main__ import main
from edgecompile.runtime.document import shorten
from edgecompile.runtime.errors import EdgecompileError

from .loader import COMMAND

if __name__ == "__main__":
    try:
        sys.exit(main(module=COMMAND))
    except OSError as error:
        print(f"error: {shorten(error, 400)}", file=sys.stderr)
        sys.exit(EdgecompileError.exit_code)
