"""Boxes of many kinds, and what torchvision 0.28 makes of them.

python -m tests.native.programs.box_cases writes the file again, where torchvision has its operators.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgecompile.export.operators.boxes import MOST_MOVED

FILE = Path(__file__).parents[2] / "data" / "boxes.npz"
#: dtype, count of boxes, threshold.
SUPPRESSIONS = list(
    itertools.product(
        [torch.float32, torch.float64],
        [0, 1, 2, 7, 33, 300],
        [0.0, 0.3, 0.5, 1.0, -1.0, float("nan")],
    )
)
#: dtype of the groups, count of boxes.
GROUPS = list(
    itertools.product(
        [torch.int64, torch.int32, torch.float32, torch.float64, torch.bool],
        [0, 5, 200, MOST_MOVED // 4, MOST_MOVED // 4 + 1],
    )
)
#: (scale, rows, columns, samples), whether it is aligned, size of the map.
AVERAGES = list(
    itertools.product(
        [(1.0, 3, 2, -1), (0.5, 7, 7, 2), (0.25, 1, 1, 0), (2.0, 2, 5, 3)],
        [False, True],
        [(1, 1), (1, 9), (13, 8), (30, 41)],
    )
)
CHANNELS, REGIONS = 70, 19
#: What the file has of each case's averages: boxes, one without a size and one turned about among them, and channels.
KEPT = np.ix_(range(7), (0, CHANNELS - 1))


def draw_boxes(count: int, dtype: torch.dtype = torch.float32, side: float = 30.0) -> Tensor:
    """Boxes [count, 4] of which many overlap, some without a size and some turned about."""
    random = np.random.RandomState(count)
    first = random.rand(count, 2) * 60
    boxes = np.concatenate([first, first + random.rand(count, 2) * side], 1)
    boxes[::13, 2:] = boxes[::13, :2]
    boxes[5::17] = boxes[5::17][:, [2, 3, 0, 1]]
    return torch.from_numpy(boxes).to(dtype)


def draw_scores(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scores of which many are equal."""
    scores = (np.random.RandomState(count + 1).rand(count) * 16).round() / 16
    return torch.from_numpy(scores).to(dtype)


def draw_groups(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scores, all of them different, and groups."""
    random = np.random.RandomState(count + 2)
    scores = torch.from_numpy(random.permutation(count) / max(count, 1)).float()
    return scores, torch.from_numpy(random.randint(-2, 3, count)).to(dtype)


def draw_map(size: tuple[int, int]) -> Tensor:
    """Two images [2, channels, *size]."""
    values = np.random.RandomState(sum(size)).standard_normal((2, CHANNELS, *size))
    return torch.from_numpy(values).float()


def draw_regions(side: float) -> Tensor:
    """Boxes [count, 5] of two images, partly outside of maps whose longer side is ``side``."""
    boxes = draw_boxes(REGIONS, side=50.0) * (side / 70) - side / 10
    images = torch.from_numpy(np.random.RandomState(3).randint(0, 2, (REGIONS, 1)))
    return torch.cat([images.float(), boxes], 1)


@functools.cache
def torchvision_results() -> Mapping[str, Tensor]:
    """The boxes that torchvision keeps, or the averages, by the text of the case."""
    found: dict[str, Tensor] = {}
    with np.load(FILE, allow_pickle=False) as file:
        for name, cases in (("kept", [*SUPPRESSIONS, *GROUPS]), ("averages", AVERAGES)):
            parts = np.split(file[name], np.cumsum(file[f"{name}_sizes"])[:-1])
            for case, part in zip(cases, parts, strict=True):
                found[str(case)] = torch.from_numpy(part)
    return found


def _kept(ops: Any) -> Iterator[Tensor]:
    for dtype, count, threshold in SUPPRESSIONS:
        yield ops.nms(draw_boxes(count, dtype), draw_scores(count, dtype), threshold)
    for dtype, count in GROUPS:
        yield ops.batched_nms(draw_boxes(count), *draw_groups(count, dtype), 0.4)


def _averages(ops: Any) -> Iterator[Tensor]:
    for (scale, rows, columns, samples), aligned, size in AVERAGES:
        boxes = draw_regions(max(size) / scale)
        made = ops.roi_align(draw_map(size), boxes, (rows, columns), scale, samples, aligned)
        yield made[KEPT].flatten()


def main() -> None:
    """Writes the file."""
    import torchvision

    arrays = {}
    for name, made, dtype in (
        ("kept", _kept(torchvision.ops), np.int16),
        ("averages", _averages(torchvision.ops), np.float32),
    ):
        parts = [part.numpy() for part in made]
        arrays[name] = np.concatenate(parts).astype(dtype)
        arrays[f"{name}_sizes"] = np.array([part.size for part in parts], np.int16)
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
