"""Aligned corners of ``interpolate``, and ``grid_sample``, compiled for images of any height and width."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgecompile
from edgecompile.runtime import open_bundle
from tests.factories import resampling

pytestmark = pytest.mark.slow

SIZES = ((1, 1), (1, 12), (12, 1), (2, 2), (3, 7), (7, 3), (5, 8), (11, 4), (6, 9), (12, 12))


@pytest.mark.parametrize(
    "factory",
    [resampling.resampled_few, pytest.param(resampling.resampled, marks=pytest.mark.exhaustive)],
)
def test_resampled_images_equal_eager_at_every_size(
    factory: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    log = tmp_path / "images.csv"
    log.write_text("height,width,count\n1,1,3\n6,9,60\n12,5,30\n")
    edgecompile.build(
        f"{resampling.__file__}:{factory.__name__}", lengths=log, target="cpu-x86-64-v3",
        output=tmp_path / "out.ecb", quick=True,
    )  # fmt: skip
    spec = factory()
    different = []
    with open_bundle(tmp_path / "out.ecb") as model:
        for height, width in SIZES:
            torch.manual_seed(20 * height + width)
            image = torch.randn(1, 2, height, width)
            got = model.run({"image": image.numpy()})
            for output, want in zip(spec["outputs"], spec["module"](image), strict=True):
                assert got[output].shape == tuple(want.shape), (output, height, width)
                if not np.allclose(got[output], want.numpy(), rtol=0, atol=2e-5):
                    different.append((output, height, width))
    assert not different
