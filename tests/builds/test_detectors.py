"""A detector from images of any height and width to as many boxes as there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgecompile
from edgecompile.models.choices import Choices
from edgecompile.models.definite import definite
from edgecompile.models.orders import follow_orders
from edgecompile.runtime import InputError, Model, OutsideBucketsError, open_bundle
from edgecompile.runtime.format.golden.ties import take_ties
from edgecompile.runtime.format.manifest.schema import Tolerance
from tests.factories import detector, queries

pytestmark = pytest.mark.slow

TOLERANCE = Tolerance(1e-4, 2e-5)


def compare(model: Model, module: nn.Module, names: Sequence[str], **inputs: Tensor) -> int:
    """Compares a bundle with eager; the number of rows of the last output."""
    with torch.no_grad(), definite(), Choices() as choices:
        outputs = dict(zip(names, module(**inputs), strict=True))

    def again(mode: AbstractContextManager[Any]) -> dict[str, Tensor]:
        with torch.no_grad(), definite(), mode:
            return dict(zip(names, module(**inputs), strict=True))

    follow_orders(choices, outputs, TOLERANCE.rtol, again)
    ties = choices.find_ties(outputs, TOLERANCE.rtol)
    want: Mapping[str, Any] = {name: tensor.numpy() for name, tensor in outputs.items()}
    got = model.run({name: tensor.numpy() for name, tensor in inputs.items()})
    taken = want if ties is None else take_ties(got, want, ties, TOLERANCE)
    for name, array in taken.items():
        np.testing.assert_allclose(got[name], array, atol=1e-4, rtol=1e-4, err_msg=name)
    return len(want[names[-1]])


def test_boxes_of_images_of_any_size(tmp_path: Path) -> None:
    log = tmp_path / "images.csv"
    log.write_text("height,width,count\n8,8,1\n16,24,60\n24,16,30\n31,32,9\n")
    edgecompile.build(
        f"{detector.__file__}:detector", lengths=log, target="cpu-x86-64-v3",
        output=tmp_path / "detector.ecb", quick=True,
    )  # fmt: skip
    module = detector.detector()["module"].eval()
    counts = []
    with open_bundle(tmp_path / "detector.ecb") as model:
        shapes = [output.shape for output in model.manifest.outputs]
        assert shapes == [(None, 4), (None,), (None, 8, 2, 2)]
        for height, width in ((8, 8), (9, 32), (17, 24), (31, 10), (32, 32)):
            torch.manual_seed(height)
            shape = 1, 3, height, width
            for image in (3 * torch.randn(shape), torch.zeros(shape)):
                names = ["boxes", "scores", "features"]
                counts.append(compare(model, module, names, image=image))
        for height, width in ((1, 1), (0, 8), (8, 0), (33, 8)):
            with pytest.raises(OutsideBucketsError, match="no bucket takes"):
                model.run({"image": np.zeros((1, 3, height, width), np.float32)})
    assert min(counts[::2]) > 0 and max(counts) > 10
    assert counts[1::2] == [0] * 5


def test_queries_of_images_of_any_size(tmp_path: Path) -> None:
    spec = queries.yolos()
    lo, hi = spec["limits"]["height"]
    log = tmp_path / "images.csv"
    log.write_text(f"height,width,count\n{lo},{lo},3\n{(lo + hi) // 2},{hi},60\n{hi},{lo},30\n")
    edgecompile.build(
        f"{queries.__file__}:yolos", lengths=log, target="cpu-x86-64-v3",
        output=tmp_path / "detector.ecb", quick=True,
    )  # fmt: skip
    with open_bundle(tmp_path / "detector.ecb") as model:
        for height, width in ((lo, lo), (lo, hi), (hi, lo + 1), ((lo + hi) // 2, hi - 1)):
            torch.manual_seed(height)
            image = torch.randn(1, 3, height, width)
            compare(model, spec["module"], spec["outputs"], image=image)
        with pytest.raises(OutsideBucketsError):
            model.run({"image": np.zeros((1, 3, 1, 1), np.float32)})


@pytest.fixture(scope="module")
def detr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RT-DETRv2 and D-FINE with what follows them, in one bundle."""
    folder = tmp_path_factory.mktemp("detr")
    log = folder / "images.csv"
    log.write_text("height,width,count\n2,2,3\n3,5,60\n5,3,30\n")
    edgecompile.build(
        f"{queries.__file__}:detr", lengths=log, target="cpu-x86-64-v3",
        output=folder / "detr.ecb", quick=True,
    )  # fmt: skip
    return folder / "detr.ecb"


@pytest.mark.exhaustive
def test_detectors_with_decoders_equal_transformers(detr: Path) -> None:
    spec = queries.detr()
    counts = {}
    with open_bundle(detr) as model:
        for height, width in ((2, 2), (2, 5), (3, 4), (5, 2), (5, 5)):
            torch.manual_seed(10 * height + width)
            image = torch.randn(1, 3, 32 * height, 32 * width)
            for threshold in (0.0, 0.5, 2.0):
                counts[height, width, threshold] = compare(
                    model, spec["module"], spec["outputs"],
                    image=image, threshold=torch.tensor([threshold]),
                )  # fmt: skip
    of = {
        threshold: [n for key, n in counts.items() if key[2] == threshold]
        for threshold in (0.0, 0.5, 2.0)
    }
    assert of[2.0] == [0] * 5 and min(of[0.0]) > 0
    assert len({*of[0.5]}) > 1


@pytest.mark.exhaustive
def test_images_that_a_decoder_was_not_built_for(detr: Path) -> None:
    with open_bundle(detr) as model:
        threshold = np.full(1, 0.3, np.float32)
        for height, width in ((1, 2), (2, 1), (6, 2), (0, 2)):
            image = np.zeros((1, 3, 32 * height, 32 * width), np.float32)
            with pytest.raises(OutsideBucketsError, match="no bucket takes"):
                model.run({"image": image, "threshold": threshold})
        with pytest.raises(InputError, match="image"):
            model.run({"image": np.zeros((1, 3, 65, 64), np.float32), "threshold": threshold})
