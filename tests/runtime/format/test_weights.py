"""weights: what is read from a valid file, and that it is mapped once. Rules: test_format.py."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime.base.errors import BundleError, DamagedBundleError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.weights import Weights, map_weights, read_constants
from tests.runtime.bundles import DummyBundle, make_weights, pack_weights

NAME = "weights.fp32"


def test_tensors(bundle: DummyBundle) -> None:
    folder = BundleFolder(bundle.write())
    weights = map_weights(folder, NAME, check_hash=True)
    folder.close()
    assert [item.name for item in weights.constants] == ["a", "b", "c"]
    np.testing.assert_array_equal(weights.array("a"), np.arange(16.0).reshape(4, 4))
    np.testing.assert_array_equal(weights.array("b"), [0, 1, 2])
    np.testing.assert_array_equal(weights.array("c"), [[0, 1], [2, 3]])
    assert [item.type.name for item in weights.constants] == ["float32", "int16", "bfloat16"]
    with pytest.raises(KeyError):
        weights.array("__pad.0")
    for item in weights.constants:
        assert (weights.address + item.offset) % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        weights.array("a")[0, 0] = 1


def test_one_mapping_for_a_process_and_a_new_one_for_a_new_file(bundle: DummyBundle) -> None:
    path = bundle.write()
    first, second = BundleFolder(path), BundleFolder(path)
    one = map_weights(first, NAME, check_hash=False)
    assert map_weights(second, NAME, check_hash=True) is one
    bundle.files[NAME] = make_weights()[:-1] + b"\1"
    (bundle.folder / NAME).unlink()  # never in place: others have it mapped
    third = BundleFolder(bundle.write())
    other = map_weights(third, NAME, check_hash=True)
    assert other is not one
    assert other.array("c")[1, 1] == 256 + 3
    assert one.array("c")[1, 1] == 3, "the replaced file stays readable"
    for folder in (first, second, third):
        folder.close()


def test_another_link_shares_a_mapping_and_another_time_of_modification_does_not(
    bundle: DummyBundle,
) -> None:
    """A file server may give a new file the inode of one that is mapped, or a file system of layers a changed one."""
    folder = BundleFolder(bundle.write())
    path = bundle.folder / NAME
    one = map_weights(folder, NAME, check_hash=False)
    os.link(path, bundle.folder / "linked")
    linked = map_weights(folder, NAME, check_hash=False)
    assert linked is not one
    assert linked.address == one.address
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1))
    assert map_weights(folder, NAME, check_hash=False).address != one.address
    folder.close()


def test_the_mapping_ends_with_its_last_user(bundle: DummyBundle) -> None:
    folder = BundleFolder(bundle.write())
    weights = map_weights(folder, NAME, check_hash=False)
    place = os.path.realpath(str(bundle.folder / NAME))
    assert place in Path("/proc/self/maps").read_text()
    view = weights.array("a")
    del weights
    gc.collect()
    assert view[3, 3] == 15, "a view keeps the memory"
    del view
    gc.collect()
    assert place not in Path("/proc/self/maps").read_text()
    folder.close()


def test_a_wrong_hash_is_found_even_if_the_file_is_mapped_already(bundle: DummyBundle) -> None:
    path = bundle.write()
    data = bytearray(bundle.files[NAME])
    data[-1] ^= 1
    (bundle.folder / NAME).write_bytes(data)
    folder = BundleFolder(path)
    kept = map_weights(folder, NAME, check_hash=False)
    for _ in range(2):
        with pytest.raises(DamagedBundleError, match="file-hash"):
            map_weights(folder, NAME, check_hash=True)
    assert isinstance(kept, Weights)
    folder.close()


def test_no_tensors_and_empty_tensors(bundle: DummyBundle) -> None:
    for data in (
        pack_weights(b"{}", b""),
        make_weights({"e": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}}, b""),
    ):
        (bundle.folder / NAME).unlink() if bundle.folder.exists() else None
        bundle.files[NAME] = data
        folder = BundleFolder(bundle.write())
        weights = map_weights(folder, NAME, check_hash=True)
        assert [weights.array(item.name).shape for item in weights.constants] in ([], [(0, 3)])
        folder.close()


def test_the_safetensors_library_reads_it(bundle: DummyBundle) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    header = {"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
    loaded = safetensors.load(make_weights(header, np.arange(16, dtype="<f4").tobytes()))
    np.testing.assert_array_equal(loaded["a"], np.arange(16.0).reshape(4, 4))


@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_give_tensors_or_a_bundle_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    good = make_weights()
    header_bytes = int.from_bytes(good[:8], "little")
    read = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(8 + header_bytes)] = rng.choice(b'0123456789"{}[],:F \x00\xff')
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        (tmp_path / "w").write_bytes(data)
        fd = os.open(tmp_path / "w", os.O_RDONLY)
        try:
            for item in read_constants(fd, len(data), "w"):
                assert 0 <= item.offset <= item.offset + item.nbytes <= len(data)
                assert item.offset % 64 == 0
            read += 1
        except BundleError:
            pass
        finally:
            os.close(fd)
    assert 0 < read < 300
