"""A detector from images of any height and width to as many boxes as there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import edgecompile
from edgecompile.models.choices import Choices
from edgecompile.models.definite import definite
from edgecompile.runtime import open_bundle
from edgecompile.runtime.format.schema import Tolerance
from edgecompile.runtime.format.ties import take_ties
from tests.factories import detector

pytestmark = pytest.mark.slow


def test_boxes_of_images_of_any_size(tmp_path: Path) -> None:
    log = tmp_path / "images.csv"
    log.write_text("height,width,count\n8,8,1\n16,24,60\n24,16,30\n31,32,9\n")
    edgecompile.build(
        f"{detector.__file__}:detector", lengths=log, target="cpu-x86-64-v3",
        output=tmp_path / "detector.ecb", quick=True,
    )  # fmt: skip
    module, tolerance = detector.detector()["module"].eval(), Tolerance(1e-4, 2e-5)
    counts = []
    with open_bundle(tmp_path / "detector.ecb") as model:
        shapes = [output.shape for output in model.manifest.outputs]
        assert shapes == [(None, 4), (None,), (None, 8, 2, 2)]
        for height, width in ((8, 8), (9, 32), (17, 24), (31, 10), (32, 32)):
            torch.manual_seed(height)
            shape = 1, 3, height, width
            for image in (3 * torch.randn(shape), torch.zeros(shape)):
                with torch.no_grad(), definite(), Choices() as choices:
                    outputs = dict(zip(["boxes", "scores", "features"], module(image), strict=True))
                ties = choices.find_ties(outputs, tolerance.rtol)
                want = {name: tensor.numpy() for name, tensor in outputs.items()}
                got = model.run({"image": image.numpy()})
                counts.append(len(want["scores"]))
                taken = want if ties is None else take_ties(got, want, ties, tolerance)
                for name, array in taken.items():
                    np.testing.assert_allclose(got[name], array, atol=1e-4, rtol=1e-4, err_msg=name)
    assert min(counts[::2]) > 0 and max(counts) > 10
    assert counts[1::2] == [0] * 5
