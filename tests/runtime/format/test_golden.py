"""golden: what is written is what is read. Hostile archives: test_format.py."""

from __future__ import annotations

import io
import os
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime.base.errors import BundleError
from edgecompile.runtime.format.golden import cases as golden
from edgecompile.runtime.format.golden.cases import Case, list_cases, read_case
from edgecompile.runtime.format.golden.ties import Ties
from edgecompile.runtime.format.manifest.schema import Manifest
from tests.runtime.bundles import make_case
from tests.runtime.golden_files import write_case


def read(path: Path, manifest: Manifest) -> Case:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_case(fd, str(path), manifest)
    finally:
        os.close(fd)


def test_round_trip(tmp_path: Path, manifest: Manifest) -> None:
    inputs, outputs = make_case(9)
    data = write_case(inputs, outputs)
    assert data == write_case(inputs, outputs)
    (tmp_path / "x.npz").write_bytes(data)
    case = read(tmp_path / "x.npz", manifest)
    for want, got in ((inputs, case.inputs), (outputs, case.outputs)):
        assert list(want) == list(got)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
            assert got[name].dtype == want[name].dtype
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        assert sorted(loaded) == sorted(
            ["in.input_ids", "in.attention_mask", "out.embedding", "out.states"]
        )


def test_what_numpy_writes(tmp_path: Path, manifest: Manifest) -> None:
    inputs, outputs = make_case(9)
    arrays = {"in." + key: value for key, value in inputs.items()}
    arrays.update({"out." + key: value for key, value in outputs.items()})
    arrays["out.states"] = np.asfortranarray(np.arange(18, dtype=np.float32).reshape(1, 9, 2))
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    case = read(tmp_path / "x.npz", manifest)
    np.testing.assert_array_equal(case.outputs["states"], arrays["out.states"])


def test_margins_travel_with_a_vector(tmp_path: Path, manifest: Manifest) -> None:
    inputs, outputs = make_case(9)
    arrays = {"in." + key: value for key, value in inputs.items()}
    arrays.update({"out." + key: value for key, value in outputs.items()})
    arrays["margin.states"] = np.array(0.25)
    np.savez(tmp_path / "x.npz", **arrays)
    assert read(tmp_path / "x.npz", manifest).margins == {"states": 0.25}
    for wrong in (np.array(-0.1), np.array(np.inf), np.array(np.nan), np.float32(1), np.zeros(1)):
        np.savez(tmp_path / "y.npz", **{**arrays, "margin.states": wrong})
        with pytest.raises(BundleError, match="golden-array"):
            read(tmp_path / "y.npz", manifest)
    np.savez(tmp_path / "z.npz", **{**arrays, "margin.input_ids": np.array(1.0)})
    with pytest.raises(BundleError, match="golden-keys"):
        read(tmp_path / "z.npz", manifest)


def test_ties_travel_with_a_vector(tmp_path: Path, manifest: Manifest) -> None:
    inputs, outputs = make_case(9)
    arrays = {"in." + key: value for key, value in inputs.items()}
    arrays.update({"out." + key: value for key, value in outputs.items()})
    shape = outputs["states"].shape
    ties = Ties(
        np.array([0, 0]),
        np.array([[1, 2], [2, -1]]),
        np.array([[1e-6, np.inf]]),
        {"states": np.resize(np.array([0, 1, -1]), shape)},
        {"states": outputs["states"][None] + 1},
    )
    np.savez(tmp_path / "x.npz", **{**arrays, **ties.to_arrays()})
    read_back = read(tmp_path / "x.npz", manifest).ties
    assert read_back is not None
    for name, array in ties.to_arrays().items():
        np.testing.assert_array_equal(read_back.to_arrays()[name], array)
    assert read(tmp_path / "x.npz", manifest)._replace(ties=None).ties is None
    whole = ties.to_arrays()
    for number, wrong in enumerate((
        {name: array for name, array in whole.items() if name != "ties.lines"},
        {name: array for name, array in whole.items() if name != "others.states"},
        {**whole, "ties.lines": np.array([0])},
        {**whole, "ties.shares": whole["ties.shares"][:, :1]},
        {**whole, "ties.places": whole["ties.places"].astype(np.int32)},
        {**whole, "slots.states": whole["slots.states"] + 1},
        {**whole, "slots.states": whole["slots.states"] - 1},
        {**whole, "slots.states": whole["slots.states"][:, :8]},
        {**whole, "others.states": np.concatenate([whole["others.states"]] * 2)},
    )):  # fmt: skip
        np.savez(tmp_path / f"{number}.npz", **{**arrays, **wrong})
        with pytest.raises(BundleError, match="golden-array"):
            read(tmp_path / f"{number}.npz", manifest)


def test_cases_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"holds no \.npz"):
        list_cases(str(tmp_path))
    for name in ("10-a.npz", "2-b-c.npz", "2-a.npz", "notes.txt"):
        (tmp_path / name).touch()
    listed = [(bucket, case) for bucket, case, _ in list_cases(str(tmp_path))]
    assert listed == [(2, "a"), (2, "b-c"), (10, "a")]
    (tmp_path / "x-a.npz").touch()
    with pytest.raises(BundleError, match=r"'x-a\.npz' isn't named"):
        list_cases(str(tmp_path))
    with pytest.raises(BundleError, match="can't be listed"):
        list_cases(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_give_a_case_or_a_bundle_error(
    tmp_path: Path, manifest: Manifest, seed: int
) -> None:
    rng = random.Random(seed)
    good = write_case(*make_case(9))
    outcomes = set()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(0, 2)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "x.npz").write_bytes(data)
        try:
            case = read(tmp_path / "x.npz", manifest)
        except BundleError:
            outcomes.add("refused")
        else:
            outcomes.add("read")
            assert case.inputs["input_ids"].dtype == np.int64
    assert outcomes == {"read", "refused"}


def pack(path: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def unpack() -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(write_case(*make_case(9)))) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_may_need_gigabytes_are_refused(
    tmp_path: Path, manifest: Manifest, method: int
) -> None:
    path = pack(tmp_path / "x.npz", unpack(), method)
    with pytest.raises(BundleError, match=rf"method {method}, must be stored.*golden-array"):
        read(path, manifest)


def test_a_list_of_millions_of_members_is_refused_before_it_is_read(
    tmp_path: Path, manifest: Manifest
) -> None:
    # An entry of the list for a member with a name of one character.
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", *[0] * 11, 1, *[0] * 6) + b"x"
    size = golden.MAX_DIRECTORY_BYTES + len(entry)
    count = size // len(entry)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, count * len(entry), 0, 0)
    (tmp_path / "x.npz").write_bytes(entry * count + end)
    with pytest.raises(BundleError, match=r"list of members has more than.*golden-archive"):
        read(tmp_path / "x.npz", manifest)


def test_data_behind_an_array_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    members = unpack()
    members[1] = (members[1][0], members[1][1] + b"\0")
    with pytest.raises(BundleError, match=r"more than 72 bytes of data.*golden-array"):
        read(pack(tmp_path / "x.npz", members), manifest)


def test_an_array_larger_than_its_member_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    members = unpack()
    name, content = members[0]
    members[0] = (name, content.replace(b"(1, 9), ", b"(1, 99999999), ").replace(b" " * 7, b"", 1))
    with pytest.raises(BundleError, match=r"799999992 bytes, at most \d+ can be here"):
        read(pack(tmp_path / "x.npz", members), manifest)


def test_arrays_share_their_limit(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(tmp_path / "x.npz", unpack())
    total = sum(array.nbytes for part in make_case(9) for array in part.values())
    monkeypatch.setattr(golden, "MAX_BYTES", total)
    read(path, manifest)
    monkeypatch.setattr(golden, "MAX_BYTES", total - 1)
    with pytest.raises(BundleError, match="can be here"):
        read(path, manifest)
