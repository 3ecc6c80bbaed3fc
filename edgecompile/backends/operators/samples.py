"""The operator for images at places between their pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from edgecompile.backends.operators import ops


def _samples_cpu(images: Tensor, grid: Tensor, padding: int, align_corners: bool) -> Tensor:
    samples = torch.grid_sampler_2d(images.permute(0, 3, 1, 2), grid, 0, padding, align_corners)
    return samples.permute(0, 2, 3, 1).contiguous()


#: Images ``[n, h, w, channels]`` at the places of a grid ``[n, rows, columns, 2]``, as torch's ``grid_sampler_2d``
#: interpolates bilinearly: ``[n, rows, columns, channels]``.
SAMPLES = ops.define(
    "ec_samples(Tensor images, Tensor grid, int padding, bool align_corners) -> Tensor",
    _samples_cpu,
    lambda images, grid, *_: images.new_empty((*grid.shape[:3], images.shape[3])),
)
