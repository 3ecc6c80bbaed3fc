"""Calls of ``interpolate`` and ``grid_sample``, in one model of any height and width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Call = Callable[[Tensor], Tensor]

#: The modes of one, two and three dimensions.
_MODES = (("linear",), ("bilinear", "bicubic"), ("trilinear",))
_PLAIN = ("nearest", "nearest-exact", "area")


def _ways(dims: int) -> dict[str, Callable[[Tensor], dict[str, Any]]]:
    """Arguments that say the size of a result; 1 × 1 still gives one of each."""
    return {
        "fixed": lambda x: {"size": (2, 3, 5)[-dims:]},
        "free": lambda x: {"size": tuple(n + 2 for n in x.shape[2:])},
        "larger": lambda x: {"scale_factor": 1.5},
        "smaller": lambda x: {"scale_factor": (1.0, 0.75, 0.5)[-dims:]},
        "again": lambda x: {"scale_factor": 1.3, "recompute_scale_factor": True},
    }


def _interpolations(dims: int) -> Iterator[tuple[str, Call]]:
    kinds: list[dict[str, Any]] = [{"mode": mode} for mode in _PLAIN]
    for mode, corners in product(_MODES[dims - 1], (False, True)):
        kinds.append({"mode": mode, "align_corners": corners})
        if dims == 2:
            kinds.append({"mode": mode, "align_corners": corners, "antialias": True})
    for kind, (way, size) in product(kinds, _ways(dims).items()):
        name = "_".join(
            [kind["mode"], *(key for key in kind if kind[key] is True), way, f"{dims}d"]
        )

        def call(x: Tensor, kind: dict[str, Any] = kind, size: Any = size) -> Tensor:
            return functional.interpolate(x, **kind, **size(x))

        yield name.replace("-", "_"), call


def _samples(dims: int) -> Iterator[tuple[str, Call]]:
    modes = ("bilinear", "nearest", "bicubic") if dims == 2 else ("bilinear", "nearest")
    for mode, padding, corners in product(modes, ("zeros", "border", "reflection"), (False, True)):

        def call(x: Tensor, options: Any = (mode, padding, corners)) -> Tensor:
            return functional.grid_sample(x, _places(x), *options)

        yield f"sample_{mode}_{padding}{'_corners' * corners}_{dims}d", call


def _places(x: Tensor) -> Tensor:
    """Places from -1.4 to 1.4 in each dimension, in another order in each: some outside of the image."""
    sizes = x.shape[2:]
    axes = [
        (torch.arange(n) * 0.37 + 0.11 * dim + x.flatten()[0] * 0.1).sin() * 1.4
        for dim, n in enumerate(sizes)
    ]
    grids = [
        axis.reshape([-1 if d == dim else 1 for d in range(len(sizes))]).expand(sizes)
        for dim, axis in enumerate(axes)
    ]
    mixed = [grid + 0.05 * grids[0] for grid in reversed(grids)]
    return torch.stack(mixed, -1).unsqueeze(0)


def calls(dims: int) -> dict[str, Call]:
    """Every call of a tensor with so many dimensions behind the channels, by its name."""
    made = dict(_interpolations(dims))
    return {**made, **dict(_samples(dims))} if dims > 1 else made


def chosen() -> list[tuple[int, str, Call]]:
    """The calls that divide by a size less one, and every ``grid_sample`` of images, with their dimensions and names."""
    return [
        (dims, name, call)
        for dims in (1, 2, 3)
        for name, call in calls(dims).items()
        if ("align_corners" in name and "antialias" not in name and "again" not in name)
        or (dims == 2 and "sample" in name)
    ]


#: One call of each operator, for a build that takes seconds.
FEW = ("bilinear_align_corners_larger_2d", "sample_bilinear_zeros_corners_2d")


class Resampled(nn.Module):
    """Images [1, 2, height, width], as lines, images and volumes, to a result of each call."""

    def __init__(self, made: list[tuple[int, str, Call]]) -> None:
        super().__init__()
        self.made = made

    @staticmethod
    def shaped(image: Tensor, dims: int) -> Tensor:
        # A factor below 1 leaves nothing of one row.
        image = torch.cat([image, image.flip(2) * 0.5], 2)
        image = torch.cat([image, image.flip(3) - 1], 3)
        return image.flatten(1, 2) if dims == 1 else image if dims == 2 else image[:, None]

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(call(self.shaped(image, dims)) for dims, _, call in self.made)


def resampled() -> dict[str, Any]:
    return _model(chosen())


def resampled_few() -> dict[str, Any]:
    return _model([item for item in chosen() if item[1] in FEW])


def _model(made: list[tuple[int, str, Call]]) -> dict[str, Any]:
    return {
        "module": Resampled(made),
        "inputs": {"image": torch.randn(1, 2, 6, 5)},
        "axes": {"image": {2: "height", 3: "width"}},
        "limits": {"height": (1, 12), "width": (1, 12)},
        "length_axis": "height",
        "outputs": [name for _, name, _ in made],
    }
