"""Both loaders run the same of a bucket's two programs: see tests/runtime/triton/test_forms.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.runtime import open_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import TritonBundle, TritonDecoder, make_inputs, make_turn
from tests.native.c_host import HostLibrary
from tests.native.test_host_tune import record

MORE = 5
OFTEN = f"TOY_REPEAT={MORE + 1}"
MODES = ("planned", "default", "reduce-overhead")


@pytest.mark.parametrize("mode", MODES)
def test_rows_choose_the_same_program(
    fake_driver: FakeCudart,
    library: HostLibrary,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    monkeypatch.setenv("EDGECOMPILE_MODE", mode)
    triton_bundle.add_few(8, OFTEN, bucket=0)
    triton_bundle.add_few(80, OFTEN, bucket=1)
    path = triton_bundle.write()
    seen = set()
    with library.open(path) as model, open_bundle(path) as python:
        launched = fake_driver.library.fake_cuda_launches
        for length, batch in [
            (8, 1),
            (9, 1),
            (4, 2),
            (5, 2),
            (40, 1),
            (40, 2),
            (41, 2),
            (8, 1),
        ] * 10:
            inputs = make_inputs(length, batch)
            launched()
            got = model.run(inputs)
            ours = launched()
            want = python.run(inputs)
            assert ours == launched(), (length, batch)
            seen.add(ours)
            for name, array in want.items():
                assert got[name].tobytes() == array.tobytes()
        told, info = model.describe(), python.info
    for key in ("graphs", "scratch_bytes", "few_rows", "launches", "tuned"):
        assert told[key] == info[key]
    # Filled up there are rows for the program for many alone.
    assert (4 + MORE in seen) is (mode != "reduce-overhead")


def test_each_program_is_tuned_by_itself(
    fake_driver: FakeCudart,
    library: HostLibrary,
    triton_bundle: TritonBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGECOMPILE_DEVICE_ROOT", str(tmp_path / "root"))
    triton_bundle.add_few(8, OFTEN, bucket=0)
    triton_bundle.variant["few"][0]["alternatives"] = [triton_bundle.programs[0]]
    triton_bundle.add_alternatives("TOY_REPEAT=2")
    path = triton_bundle.write()
    record(path, [0, 1, 1])
    with library.open(path) as model, open_bundle(path) as python:
        assert model.describe()["tuned"] == python.info["tuned"] is not None
        launched = fake_driver.library.fake_cuda_launches
        for length, count in ((8, 4), (9, 4), (40, 5)):
            for run in (model.run, python.run):
                launched()
                run(make_inputs(length))
                assert launched() == count


def test_programs_for_few_rows_alone_may_have_alternatives(
    fake_driver: FakeCudart,
    library: HostLibrary,
    triton_bundle: TritonBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGECOMPILE_DEVICE_ROOT", str(tmp_path / "root"))
    triton_bundle.add_few(8, OFTEN, bucket=0)
    triton_bundle.variant["few"][0]["alternatives"] = [triton_bundle.programs[0]]
    path = triton_bundle.write()
    record(path, [0, 0, 1])
    with library.open(path) as model, open_bundle(path) as python:
        assert model.describe()["tuned"] == python.info["tuned"] is not None
        launched = fake_driver.library.fake_cuda_launches
        for run in (model.run, python.run):
            launched()
            run(make_inputs(8))
            assert launched() == 4


@pytest.mark.parametrize(("rows", "count"), [(15, 2), (16, 2 + MORE)])
def test_rows_of_caches_do_not_count(
    fake_driver: FakeCudart, library: HostLibrary, tmp_path: Path, rows: int, count: int
) -> None:
    """Its bucket fills three tokens up to 16; the caches have 40 rows."""
    decoder = TritonDecoder(tmp_path / "x.ecb")
    decoder.add_few(rows, OFTEN, bucket=1)
    path = decoder.write()
    with library.open(path) as model, open_bundle(path) as python:
        launched = fake_driver.library.fake_cuda_launches
        turns = [make_turn(40), make_turn(40)]
        launched()
        got = model.run(turns[0])
        ours = launched()
        want = python.run(turns[1])
        assert (ours, launched()) == (count, count)
        assert all(got[name].tobytes() == array.tobytes() for name, array in want.items())
        for name in ("key", "value"):
            assert turns[0][name].tobytes() == turns[1][name].tobytes()
