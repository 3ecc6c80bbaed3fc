"""Samples of images by the C ABI's operator, against torch's ``grid_sample``."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from tests.native.programs.aoti import ShimError
from tests.native.programs.torch_cases import ours

NAN, INF = float("nan"), float("inf")


def samples(images: Tensor, grid: Tensor, padding: int = 0, corners: bool = False) -> Tensor:
    """The result of the native operator, ``[n, channels, rows, columns]`` as torch has it."""
    pixels = images.permute(0, 2, 3, 1)
    result = ours("cpu_ec_samples", pixels, grid, padding, int(corners), results=1)[0]
    assert result.is_contiguous()
    return result.permute(0, 3, 1, 2)


def draw(channels: int, height: int, width: int, points: int = 9) -> tuple[Tensor, Tensor]:
    """Two images, and places of which a third is outside."""
    torch.manual_seed(channels + height)
    images = torch.randn(2, height, width, channels).permute(0, 3, 1, 2)
    grid = torch.rand(2, points, 5, 2) * 3 - 1.5
    # The edges themselves, a pixel's centre, and places further away.
    grid[0, :3, 0, 0] = torch.tensor([-1.0, 1.0, 1 - 1 / width])
    grid[1, :3, 1] = torch.tensor([[7.0, -6.0], [-5.0, 0], [9.25, -7.5]])
    return images, grid


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(8, 1, 1), (3, 1, 6), (40, 7, 1), (37, 5, 4), (64, 11, 13)])
def test_samples_equal_torchs(sizes: tuple[int, int, int], padding: int, corners: bool) -> None:
    images, grid = draw(*sizes)
    wanted = torch.grid_sampler_2d(images, grid, 0, padding, corners)
    got = samples(images, grid, padding, corners)
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-5)


def test_many_points_are_divided_among_threads() -> None:
    images, grid = draw(48, 6, 5, points=200)
    whole = samples(images, grid)
    torch.testing.assert_close(whole, torch.grid_sampler_2d(images, grid, 0, 0, False))
    assert torch.equal(samples(images[1:], grid[1:, 100:]), whole[1:, :, 100:])


def test_any_order_in_memory_is_read() -> None:
    images, grid = draw(16, 6, 5)
    wanted = samples(images, grid)
    turned = grid.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
    assert torch.equal(samples(images, turned), wanted)
    for points in (grid, grid[:, :1, :1]):  # many and few beside the image
        got = samples(images.contiguous(), points)
        torch.testing.assert_close(got, wanted[:, :, : points.shape[1], : points.shape[2]])


@pytest.mark.parametrize(
    ("place", "padding"),
    # A reflection of a finite place far away has no digits left.
    [*product((NAN, INF, -INF), (0, 1, 2)), *product((1e30, -1e30), (0, 1))],
)
def test_far_places_are_torchs(place: float, padding: int) -> None:
    images, grid = draw(8, 4, 5)
    grid[0, :, :, 0], grid[1, :, :, 1] = place, place
    wanted = torch.grid_sampler_2d(images, grid, 0, padding, False)
    torch.testing.assert_close(samples(images, grid, padding), wanted, equal_nan=True)


def test_pixels_beside_the_edge_leave_no_trace_outside() -> None:
    images = torch.full((1, 8, 3, 3), INF)
    for place in (3.0, -3.0):
        got = samples(images, torch.full((1, 1, 1, 2), place))
        assert torch.equal(got, torch.zeros(1, 8, 1, 1)) and not got.signbit().any()


def test_nothing_gives_nothing() -> None:
    images, grid = draw(8, 4, 5)
    assert samples(images, grid[:, :0]).shape == (2, 8, 0, 5)
    assert samples(images[:0], grid[:0]).shape == (0, 8, 9, 5)


@pytest.mark.parametrize(
    ("images", "grid", "padding", "problem"),
    [
        (torch.zeros(1, 8, 3, 3), torch.zeros(1, 2, 2, 3), 0, "3 numbers instead of 2"),
        (torch.zeros(1, 8, 3, 3), torch.zeros(2, 2, 2, 2), 0, "1 images have 2 grids"),
        (torch.zeros(1, 8, 3, 3).double(), torch.zeros(1, 2, 2, 2), 0, "images"),
        (torch.zeros(1, 8, 3, 3), torch.zeros(1, 2, 2, 2).half(), 0, "grid"),
        (torch.zeros(1, 8, 3, 3), torch.zeros(1, 2, 2), 0, "grid"),
        (torch.zeros(1, 8, 0, 3), torch.zeros(1, 2, 2, 2), 0, "an image of 0 by 3"),
        (torch.zeros(1, 8, 3, 3), torch.zeros(1, 2, 2, 2), 3, "number 3"),
    ],
)
def test_what_does_not_fit_is_refused(
    images: Tensor, grid: Tensor, padding: int, problem: str
) -> None:
    with pytest.raises(ShimError, match=problem):
        samples(images, grid, padding)
