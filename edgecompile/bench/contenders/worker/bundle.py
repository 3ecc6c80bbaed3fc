"""A bundle, run by the runtime inside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgecompile.runtime import open_bundle


class _Session:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        import edgecompile

        if settings["torch"]:
            import edgecompile.torch_runtime  # torch runs this bundle: registers its loader
        self._model = open_bundle(
            settings["path"], threads=settings["threads"], variant=settings["variant"]
        )
        info = self._model.info
        self.facts = {
            "version": edgecompile.__version__,
            "threads": info["threads"],
            "variant": info["variant"],
            "runtime": edgecompile.__file__,
        }
        self.run = self._model.run


def open_session(settings: Mapping[str, Any]) -> _Session:
    """Opens ``path`` with ``threads`` and ``variant`` (None: the best)."""
    return _Session(settings)
