"""Convolutional models through the real compiler: lowered, generated, linked, and run beside eager."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from edgecompile.backends.artifact import Artifact, TensorStore
from edgecompile.backends.cpu.backend import InductorCpuBackend, ProgramTask
from edgecompile.buckets.costs.grid import Mode
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.export import export_model
from edgecompile.export.store import export_bucket
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from tests.factories.convolutional import CHANNELS, parts
from tests.native.programs.aoti import load_shim, own_runtime, own_variant
from tests.native.programs.host import Host
from tests.native.programs.test_program import host  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(parts(), batch=(1, 3))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TensorStore:
    return TensorStore(tmp_path_factory.mktemp("tensors"))


@pytest.fixture(scope="module")
def artifact(
    model: LoadedModel, store: TensorStore, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    folder = tmp_path_factory.mktemp("convolutional")
    variant = own_variant()
    bucket = Bucket("exact", (("length", AxisRange(4, 64, 20)),))
    library = folder / "parts.so"
    task = ProgramTask(export_model(model), bucket, variant, own_runtime(), library, store)
    return InductorCpuBackend().compile_program(task)


def test_parts_became_the_runtimes_operators(artifact: Artifact) -> None:
    counts = artifact.lowering["counts"]
    # Weights computed from the input, and float64, are left to torch's operator.
    assert len(artifact.lowering["plain_convolutions"]) == 3
    wanted = {
        "convolutions": 14, "pointwise": 4, "batch_norms": 6, "pads": 1, "convolved_activations": 6
    }  # fmt: skip
    assert {kind: counts[kind] for kind in wanted} == wanted
    # Of the weights that became packed ones nothing else is stored: no norm's, no plain ones.
    packed = {name for name in artifact.constants if name.startswith("ecpack_")}
    own = {name.removeprefix("model.") for name in artifact.constants.keys() - packed}
    assert {name for name in own if name.endswith("weight")} <= {
        "computed.wide.weight", "frontend.norm.weight", "conformer.norm.weight",
        "separable.norm.weight",
    }  # fmt: skip


def test_every_part_is_eagers_at_every_length(
    host: Host,  # noqa: F811
    model: LoadedModel,
    artifact: Artifact,
    store: TensorStore,
) -> None:
    load_shim()  # the library finds the runtime by its SONAME among those that are loaded
    weights = {
        name: np.fromfile(store.path(t), t.dtype).reshape(t.shape)
        for name, t in artifact.constants.items()
    }
    program = host.open(artifact.library, weights)
    for batch, length in ((1, 4), (2, 5), (1, 20), (3, 33), (1, 64)):
        x = torch.randn(batch, CHANNELS, length, generator=torch.Generator().manual_seed(length))
        want = model.run({"x": x})
        got = host.run(program, x.numpy())
        for (name, value), array in zip(want.items(), got, strict=True):
            scale = float(value.abs().max())
            np.testing.assert_allclose(
                array, value.numpy(), rtol=0, atol=1e-5 * scale, err_msg=f"{name} {length}"
            )
    host.close(program)


class Causal(torch.nn.Module):
    """A convolution of images [B, C, length, 24] that doesn't look ahead along the length."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(torch.nn.functional.pad(x, (1, 1, 2, 0)))
        return y


@pytest.mark.parametrize("mode", ["pad", "exact"])
@pytest.mark.parametrize("fill", [3e38, float("nan")])
def test_what_stands_in_padding_changes_nothing(
    host: Host,  # noqa: F811
    tmp_path: Path,
    mode: Mode,
    fill: float,
) -> None:
    """In an exact program that a padded bucket shares, too."""
    torch.manual_seed(0)
    module, width = Causal().eval(), 24
    example = torch.randn(1, 16, 30, width)
    model = load_model(
        {
            "module": module,
            "inputs": {"x": example},
            "axes": {"x": {2: "length"}},
            "limits": {"length": (22, 32)},
        }
    )
    bucket = Bucket(mode, (("length", AxisRange(22, 32, 32)),))
    store, library = TensorStore(tmp_path / "tensors"), tmp_path / "causal.so"
    task = ProgramTask(
        export_bucket(model, bucket), bucket, own_variant(), own_runtime(), library, store,
        padded=mode == "exact",
    )  # fmt: skip
    artifact = InductorCpuBackend().compile_program(task)
    load_shim()
    weights = {
        name: np.fromfile(store.path(t), t.dtype).reshape(t.shape)
        for name, t in artifact.constants.items()
    }
    program, x = host.open(artifact.library, weights), torch.full((1, 16, 32, width), fill)
    x[:, :, :30] = example
    (got,) = host.run(program, x.numpy())
    host.close(program)
    with torch.no_grad():
        want = module(example).numpy()
    np.testing.assert_allclose(got[:, :, :30], want, rtol=1e-5, atol=1e-5)


def test_a_program_that_pads_is_another_one(tmp_path: Path) -> None:
    """Even where it was exported for the same size."""
    model, extent = load_model(parts(), batch=(1, 1)), AxisRange(20, 20, 20)
    exact = Bucket("exact", (("length", extent), ("batch", AxisRange(1, 1, 1))))
    exported = export_bucket(model, exact)
    store, library = TensorStore(tmp_path / "tensors"), tmp_path / "parts.so"
    plain = ProgramTask(exported, exact, own_variant(), None, library, store, export_key="same")
    pads = dataclasses.replace(plain, bucket=dataclasses.replace(exact, mode="pad"))
    assert exact.program_json() == pads.bucket.program_json()
    assert len({task.key for task in (plain, pads, dataclasses.replace(plain, padded=True))}) == 2
