"""The weights file: aligned, without holes, and readable by safetensors itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from edgecompile.backends.artifact import TensorStore
from edgecompile.bundle.weights import ALIGNMENT, PADDING_PREFIX, write_weights
from edgecompile.errors import CompileError

TENSORS = {
    "b.weight": torch.randn(3, 5),
    "a.scalar": torch.tensor(2.5),
    "c.flag": torch.tensor([True, False, True]),
    "d.ids": torch.arange(7),
    "e.empty": torch.zeros(0, 4),
    "f.half": torch.randn(5).to(torch.bfloat16),
    "g.narrow": torch.randn(5, 3).to(torch.float8_e4m3fn),
}


def write(tmp_path: Path) -> Path:
    store = TensorStore(tmp_path / "store")
    path = tmp_path / "weights.fp32"
    size = write_weights(path, {n: store.add(t) for n, t in TENSORS.items()}, store)
    assert size == path.stat().st_size
    return path


def test_safetensors_reads_the_same_values(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    read = load_file(write(tmp_path))
    names = {name for name in read if not name.startswith(PADDING_PREFIX)}
    assert names == set(TENSORS)
    for name, want in TENSORS.items():
        assert read[name].dtype == want.dtype
        assert torch.equal(read[name].float(), want.float())


def test_a_stored_tensor_that_has_changed_is_refused_and_made_again(tmp_path: Path) -> None:
    store = TensorStore(tmp_path / "store")
    tensors = {name: store.add(tensor) for name, tensor in TENSORS.items()}
    path = store.path(tensors["b.weight"])
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(CompileError, match="has changed since it was written"):
        write_weights(tmp_path / "weights", tensors, store)
    assert store.add(TENSORS["b.weight"]) == tensors["b.weight"]
    write_weights(tmp_path / "again", tensors, store)


def test_every_tensor_is_aligned_in_the_file(tmp_path: Path) -> None:
    data = write(tmp_path).read_bytes()
    header_size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_size])
    for name, entry in header.items():
        if name != "__metadata__" and not name.startswith(PADDING_PREFIX):
            assert (8 + header_size + entry["data_offsets"][0]) % ALIGNMENT == 0, name


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert write(tmp_path / "one").read_bytes() == write(tmp_path / "two").read_bytes()


def test_the_store_keeps_equal_content_once(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    first = store.add(torch.ones(4, 4))
    assert store.add(torch.ones(4, 4).t()) == first
    assert store.add(torch.ones(16)) != first
    assert len(list(tmp_path.iterdir())) == 2


def test_unknown_dtypes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="complex64"):
        TensorStore(tmp_path).add(torch.zeros(2, dtype=torch.complex64))
