"""Keeps sizes varying while a model is traced: torch's functions that would fix them are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from edgecompile.export.rewrites.boxes import box_operators
from edgecompile.export.rewrites.ceil_pooling import CEIL_POOLING
from edgecompile.export.rewrites.pooling import POOLING
from edgecompile.export.rewrites.products import PRODUCTS
from edgecompile.export.rewrites.resampling import RESAMPLING
from edgecompile.export.rewrites.sequences import SEQUENCES
from edgecompile.export.rewrites.spectra import SPECTRA

_REWRITES = {
    **CEIL_POOLING,
    **POOLING,
    **PRODUCTS,
    **RESAMPLING,
    **SEQUENCES,
    **SPECTRA,
}
#: Arguments of constructors without influence on values, each with what is torch's default.
_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "out": (None,),
    "layout": (None, torch.strided),
    "pin_memory": (None, False),
    "requires_grad": (None, False),
}


class VaryingSizes(TorchFunctionMode):
    """While it is entered, functions of :data:`_REWRITES`, and torchvision's on boxes, are computed by others where a size varies.

    Where all sizes are numbers, torch's own are called, unless nothing that runs a program has their kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rewrites = {**_REWRITES, **box_operators()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        rewrite = self._rewrites.get(func)
        if rewrite is not None:
            given = {
                k: v
                for k, v in kwargs.items()
                if not any(v is item for item in _DEFAULTS.get(k, ()))
            }
            # torch's name of the first argument, which is x or a size here.
            first = (given.pop("input"),) if "input" in given else ()
            if not _DEFAULTS.keys() & given.keys():
                result = rewrite(*first, *args, **given)
                if result is not NotImplemented:
                    return result
        return func(*args, **kwargs)
