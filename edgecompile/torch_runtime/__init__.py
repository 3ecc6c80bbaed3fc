"""Runs bundles that were built with ``--backend torch``, on a host that has torch.

    from edgecompile.torch_runtime import open_bundle

Importing this package registers torch's loader with :mod:`edgecompile.runtime`, whose
``open_bundle`` then takes such bundles too; all else about a ``Model`` is the same. torch itself is
imported when a bundle needs it. ``python -m edgecompile.torch_runtime`` has the commands of
``python -m edgecompile.runtime``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgecompile.runtime.cpu.loaders import register_loader
from edgecompile.runtime.format.manifest.schema import TORCH

from .loader import TorchLoader

if TYPE_CHECKING:
    from edgecompile.runtime.model.model import Model
    from edgecompile.runtime.model.open_bundle import open_bundle

__all__ = ["Model", "open_bundle"]

register_loader(TORCH, TorchLoader())


def __getattr__(name: str) -> Any:
    if name in __all__:
        from edgecompile.runtime.model import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
