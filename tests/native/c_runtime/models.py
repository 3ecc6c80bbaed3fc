"""The tiny bundle opened by the C runtime and by the Python runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import pytest

from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.model.model import Model
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.native.c_runtime.c_library import CLibrary, CModel
from tests.runtime.bundles import change_libraries

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(name="path", scope="session")
def copy_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny bundle: three exact buckets over lengths, batch 1 or 2.

    With libraries of their own content: what other tests have loaded of that bundle, in Python, isn't
    what this library loads, but for the runtime, whose SONAME is the same.
    """
    bundle = os.environ.get("EDGECOMPILE_TEST_BUNDLE")
    folder = tmp_path_factory.mktemp("host") / "tiny.ecb"
    shutil.copytree(bundle or request.getfixturevalue("tiny_bundle"), folder)
    change_libraries(folder)
    return str(folder)


@pytest.fixture(name="python_model", scope="module")
def open_python(path: str) -> Iterator[Model]:
    with open_bundle(path) as model:
        yield model


@pytest.fixture(name="model", scope="module")
def open_host(library: CLibrary, path: str) -> Iterator[CModel]:
    with library.open(path) as opened:
        yield opened


def inputs_of(python_model: Model, length: int, batch: int = 1, seed: int = 0) -> Arrays:
    axis = python_model.manifest.length_axis
    assert axis is not None
    sizes = {name: batch for name in python_model.manifest.axes} | {axis: length}
    return make_inputs(python_model.manifest, sizes, seed)


def batches_of(python_model: Model) -> range:
    axes = python_model.manifest.axes
    others = [axes[name] for name in axes if name != python_model.manifest.length_axis]
    return range(others[0].lo, others[0].hi + 1) if others else range(1, 2)


def assert_same(got: Arrays, want: Arrays) -> None:
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()
