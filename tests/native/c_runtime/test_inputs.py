"""Inputs through edgecompile_runtime.h: taken and refused as by the Python runtime."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.model.model import Model
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import CLibrary, CLibraryError, CModel, make_tensors
from tests.native.c_runtime.models import (  # noqa: F401
    Arrays,
    assert_same,
    copy_bundle,
    inputs_of,
    open_host,
    open_python,
)


def test_the_order_of_inputs_is_free(model: CModel, python_model: Model) -> None:
    inputs = inputs_of(python_model, 5)
    assert_same(model.run(dict(reversed(inputs.items()))), python_model.run(inputs))


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint8", "int8", "bool"])
def test_narrower_integers_are_widened(model: CModel, python_model: Model, dtype: str) -> None:
    inputs = inputs_of(python_model, 6, seed=3)
    narrow = {name: (array % 2).astype(dtype) for name, array in inputs.items()}
    assert_same(model.run(narrow), python_model.run(narrow))


@pytest.mark.parametrize("offset", [1, 3, 8, 24])
def test_data_may_lie_at_any_address(model: CModel, python_model: Model, offset: int) -> None:
    inputs = inputs_of(python_model, 6, seed=4)
    tensors = make_tensors(inputs)
    memory = [ctypes.create_string_buffer(array.nbytes + 128) for array in inputs.values()]
    for tensor, buffer, array in zip(tensors, memory, inputs.values(), strict=True):
        tensor.data = -(-ctypes.addressof(buffer) // 64) * 64 + offset
        ctypes.memmove(tensor.data, array.ctypes.data, array.nbytes)
    outputs = model.run_tensors(tensors)
    assert_same(c_library.read_outputs(outputs), python_model.run(inputs))
    model.library.c.ecr_outputs_free(outputs)


def swap(name: str, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Any:
    return lambda inputs: {**inputs, name: np.asarray(change(inputs[name]), order="C")}


def with_value(value: int) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    def change(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        array = array.copy()
        array.reshape(-1)[-1] = value
        return array

    return change


def words(text: str) -> list[str]:
    """Those of a text, without their order."""
    return sorted(text.replace(",", " ").split())


IDS, MASK = "input_ids", "attention_mask"
BAD_INPUTS: list[tuple[str, Any]] = [
    ("is missing", lambda inputs: {MASK: inputs[MASK]}),
    ("is missing", lambda inputs: {}),
    ("no such input", lambda inputs: {**inputs, "x": inputs[IDS]}),
    ("no such input", lambda inputs: {"inputs_ids": inputs[IDS], MASK: inputs[MASK]}),
    ("has dtype float32, must be int64", swap(IDS, lambda a: a.astype(np.float32))),
    ("must be [batch, length] with 2", swap(IDS, lambda a: a[0])),
    ("with 0 dimensions", swap(MASK, lambda a: np.zeros((), np.int64))),
    ("but dimension 1 of input_ids has", swap(MASK, lambda a: a[:, 1:])),
    ("values lie outside 0..", swap(IDS, with_value(2**40))),
    ("values lie outside 0..", swap(IDS, with_value(-1))),
    ("the first is 2 at [0, 5]", swap(MASK, with_value(2))),
    ("the first is -7", lambda inputs: {n: with_value(-7)(a) for n, a in inputs.items()}),
    ("no bucket takes", lambda inputs: {n: np.repeat(a, 20, 1) for n, a in inputs.items()}),
    ("no bucket takes", lambda inputs: {n: np.repeat(a, 5, 0) for n, a in inputs.items()}),
    ("no bucket takes", lambda inputs: {n: a[:, :0].copy() for n, a in inputs.items()}),
]


@pytest.mark.parametrize(("text", "change"), BAD_INPUTS, ids=range(len(BAD_INPUTS)))
def test_bad_inputs_are_refused_as_in_python(
    model: CModel, python_model: Model, text: str, change: Callable[[Arrays], Arrays]
) -> None:
    inputs = change(inputs_of(python_model, 6))
    with pytest.raises(EdgecompileError) as wanted:
        python_model.run(inputs)
    with pytest.raises(CLibraryError) as caught:
        model.run(inputs)
    assert caught.value.status == wanted.value.exit_code
    assert text in caught.value.text
    if "values lie outside" in text or "bucket" in text:
        # Buckets list their axes in the manifest's order here, in their own there.
        assert words(caught.value.text) == words(str(wanted.value))


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("has no name", "name", None),
        ("has no data", "data", None),
        ("bytes, but int64[1, 6] has 48", "nbytes", 47),
        ("bytes, but int64[1, 6] has 48", "nbytes", 2**62),
        ("has dtype code 99", "dtype", 99),
        ("has dtype code -1", "dtype", -1),
        ("has 9 dimensions", "ndim", 9),
        ("has -1 dimensions", "ndim", -1),
        ("impossible sizes", "sizes", (1, -6)),
        ("impossible sizes", "sizes", (2**62, 2**62)),
        ("is given twice", "name", MASK.encode()),
    ],
)
def test_tensors_that_lie_are_refused(
    model: CModel, python_model: Model, text: str, field: str, value: Any
) -> None:
    inputs = inputs_of(python_model, 6)
    tensors = make_tensors(inputs)
    if field == "sizes":
        tensors[0].sizes[:2] = value
    else:
        setattr(tensors[0], field, value)
    with pytest.raises(CLibraryError) as caught:
        model.run_tensors(tensors)
    assert caught.value.status == c_library.INPUT
    assert text in caught.value.text


def test_a_bool_that_isnt_one_is_refused(model: CModel, python_model: Model) -> None:
    inputs = inputs_of(python_model, 6)
    inputs[MASK] = np.array([[1, 1, 0, 2, 1, 1]], np.uint8).view(np.bool_)
    with pytest.raises(CLibraryError, match="byte 3 is 2, a bool must be 0 or 1"):
        model.run(inputs)


def test_an_input_with_a_default_may_be_left_out(
    library: CLibrary, path: str, python_model: Model, tmp_path: Path
) -> None:
    folder = tmp_path / "default.ecb"
    shutil.copytree(path, folder)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    place = next(i for i, item in enumerate(manifest["inputs"]) if item["name"] == "attention_mask")
    manifest["inputs"][place]["default"] = 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    inputs = inputs_of(python_model, 5, seed=4)
    inputs["attention_mask"][:] = 1
    want = python_model.run(inputs)
    mask = inputs.pop("attention_mask")
    with library.open(folder) as opened, open_bundle(folder) as python:
        assert opened.describe()["inputs"] == python.info["inputs"]
        assert_same(opened.run(inputs), want)
        assert_same(python.run(inputs), want)
        misspelt = {**inputs, "attention_mast": mask}
        with pytest.raises(CLibraryError, match="attention_mast: the model has no such input"):
            opened.run(misspelt)
        with pytest.raises(CLibraryError, match="input_ids: is missing"):
            opened.run({})
        wide = {"input_ids": np.ones((1, 10**6), np.int64)}
        with pytest.raises(CLibraryError, match="no bucket") as caught:
            opened.run(wide)
        assert caught.value.status == c_library.OUTSIDE
