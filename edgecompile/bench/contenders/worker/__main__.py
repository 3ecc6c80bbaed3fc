"""Entry point of ``python <folder>``: loads the folder as a package of a name of its own."""

import importlib
import importlib.util
import os
import sys

_NAME = "edgecompile_contender"


def load() -> None:
    """Makes the folder importable as a package without leaving it on ``sys.path``.

    Its modules are called like the libraries they drive, and ``edgecompile`` may be the copy in a
    bundle, which has no ``contenders``.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0]) == folder:
        del sys.path[0]
    spec = importlib.util.spec_from_file_location(
        _NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load()
    sys.exit(importlib.import_module(_NAME + ".loop").main())
