"""Types of arguments that several functions share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from edgecompile.api.progress import ProgressEvent
from edgecompile.progress import Progress

if TYPE_CHECKING:
    import torch

    from edgecompile.loaders.factory_specs import ModelSpec

PathLike: TypeAlias = "str | os.PathLike[str]"
Model: TypeAlias = (
    "PathLike | torch.nn.Module | torch.export.ExportedProgram | ModelSpec | Mapping[str, Any]"
)
#: A file or the object of a JSON one, one length for each run, a histogram {length: count}, or pairs
#: (batch, length).
Lengths: TypeAlias = "PathLike | Mapping[Any, int] | Iterable[Any]"
Texts: TypeAlias = "PathLike | Iterable[str]"
Callback: TypeAlias = Callable[[ProgressEvent], object] | Progress
