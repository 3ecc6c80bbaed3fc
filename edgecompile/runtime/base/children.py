"""Fresh processes that import this very runtime."""

import os
import sys
from typing import Any, Dict, List, Tuple


def child_command(module: str) -> Tuple[List[str], Dict[str, Any]]:
    """The command line of a process that runs a module of this runtime, such as ``edgecompile.runtime``.

    Returns:
        The start of its command, and arguments for ``subprocess``: its environment and folder.
    """
    launcher = getattr(__spec__.loader, "launcher", None)
    if launcher is not None:  # it compares the bundle's files again, and needs no PYTHONPATH
        flags = ["-I"] if sys.flags.isolated else []
        return [sys.executable, *flags, launcher, "-m", module], {}
    package = os.path.abspath(__file__)
    for _ in __name__.split("."):
        package = os.path.dirname(package)
    # Its folder is another one, so what is relative wouldn't be found.
    paths = [
        os.path.abspath(item) for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item
    ]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([package, *paths]))
    # -m looks in the working directory first.
    return [sys.executable, "-m", module], {"env": environment, "cwd": package}
