"""Convolutional models through the real compiler: lowered, generated, linked, and run beside eager."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgecompile.backends.artifact import Artifact, TensorStore
from edgecompile.backends.cpu.backend import InductorCpuBackend, ProgramTask
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.export import export_model
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
