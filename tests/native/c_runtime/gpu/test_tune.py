"""Both loaders read what ``tune`` recorded: the same choice, and of a record that is no use none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import EngineCacheError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.gpu.cache import digest
from edgecompile.runtime.gpu.device import describe_device
from edgecompile.runtime.triton.driver import Driver
from edgecompile.runtime.triton.tuning import TuningFolder
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import (
    DEVICE,
    FakeCublasLt,
    TritonBundle,
    TritonMultiplier,
    make_inputs,
    multiply,
)
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import CLibrary

WRONG = "TOY_FAULT=7"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a machine that says nothing of itself."""
    path = tmp_path / "cache"
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(path))
    monkeypatch.setenv("EDGECOMPILE_DEVICE_ROOT", str(tmp_path / "root"))
    return path


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Of each bucket a right program, a wrong one and another right one."""
    bundle = TritonBundle(tmp_path / "x.ecb")
    bundle.add_alternatives(WRONG)
    bundle.add_alternatives("TOY_REPEAT=2")
    return bundle.write()


def record(path: str, choice: list[int]) -> Path:
    """Writes what ``tune`` would for this choice."""
    return write_record(path, choice=choice)


def find_folder(path: str) -> TuningFolder:
    bundle = BundleFolder(path)
    variant = next(item for item in bundle.manifest.variants if item.backend == "triton")
    return TuningFolder(bundle, variant)


def write_record(path: str, **entries: Any) -> Path:
    """Writes a record with these entries."""
    folder = find_folder(path)
    folder.make()
    try:
        return Path(folder.write(entries).path)
    except EngineCacheError:  # it is no use, but there
        return Path(folder.join("choice.json"))


def check(library: CLibrary, path: str, choice: list[int] | None) -> None:
    """What both loaders say they took, and that they took it."""
    with library.open(path) as model, open_bundle(path) as python:
        told = model.describe()["tuned"]
        assert told == python.info["tuned"]
        assert (None if told is None else told["choice"]) == choice
        for length in (3, 40):
            got, want = model.run(make_inputs(length)), python.run(make_inputs(length))
            for name, array in want.items():
                assert got[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("choice", [[0, 0], [1, 0], [2, 1], [2, 2]])
def test_the_recorded_programs_run(
    fake_driver: FakeCudart, library: CLibrary, path: str, choice: list[int]
) -> None:
    check(library, path, None)
    with library.open(path) as model:
        before = [model.run(make_inputs(length)) for length in (3, 40)]
    record(path, choice)
    check(library, path, choice)
    with library.open(path) as model:
        after = [model.run(make_inputs(length)) for length in (3, 40)]
    for old, new, number in zip(before, after, choice, strict=True):
        same = all(old[name].tobytes() == new[name].tobytes() for name in old)
        assert same is (number != 1)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", "cut", "twice", "text", "long", "folder", "link",
     {"choice": [2, 3]}, {"choice": [-1, 0]}, {"choice": [2]}, {"choice": [2, 2, 2]},
     {"choice": [1.0, 1]}, {"choice": [True, 1]}, {"choice": "22"}, {"choice": None},
     {"key": "0" * 64}, {"key": 7}, {"record_version": 2}, {"record_version": "1"},
     {"record_version": 1.0}],
)  # fmt: skip
def test_a_record_that_is_no_use_is_not_used(
    fake_driver: FakeCudart, library: CLibrary, path: str, tmp_path: Path, content: Any
) -> None:
    file = record(path, [2, 2])
    text = file.read_text()
    if isinstance(content, dict):
        file.write_text(json.dumps({**json.loads(text), **content}))
    elif content == "link":  # that is followed
        file.rename(tmp_path / "elsewhere.json")
        file.symlink_to(tmp_path / "elsewhere.json")
    elif content == "folder":
        file.unlink()
        file.mkdir()
    else:
        changed = {
            "cut": text[: len(text) // 2],
            "twice": text.replace("{", '{"choice": [1, 1],', 1),
            "text": text.replace('"key"', '"\\ud800": "\xff", "key"'),
            "long": text + " " * (4 << 20),
        }
        file.write_bytes(changed.get(content, content).encode("latin-1"))
    check(library, path, [2, 2] if content == "link" else None)


@pytest.mark.parametrize(
    "changed",
    [
        DEVICE.replace("Fake H100", "Fake H200"),
        DEVICE.replace("sm=132", "sm=114"),
        DEVICE.replace("Fake H100", "Fake H100 MIG 1g.10gb").replace("sm=132", "sm=16"),
        DEVICE.replace("driver=12080", "driver=12090"),
        DEVICE.replace("cc=9.0", "cc=9.1"),
        DEVICE.replace("integrated=0", "integrated=1"),
    ],
)
def test_it_holds_for_this_gpu_and_driver(
    fake_driver: FakeCudart,
    library: CLibrary,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    changed: str,
) -> None:
    record(path, [2, 2])
    monkeypatch.setenv("FAKE_CUDART_DEVICE", changed)
    check(library, path, None)
    record(path, [0, 2])
    check(library, path, [0, 2])
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE)
    check(library, path, [2, 2])


RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic"


@pytest.mark.parametrize(
    "release",
    [RELEASE, "# R35 (release), REVISION: 6", "# R36 (release), REVISION: 4.3.", "# R36 (release)",
     "# R36 (release), REVISION: 1.2.3.4.5", "# R12345 (release), REVISION: 4", " " + RELEASE,
     "# R1234 (release), REVISION: 12345.1", "# R (release), REVISION: 4", "# R36 (release), REVISION: ."],
)  # fmt: skip
@pytest.mark.parametrize(
    ("model", "name"),
    [(b"NVIDIA Jetson AGX Orin\0", "  two  blanks "), (b"\xff\xe9 Orin \n\0", "x" * 240),
     (b"", "J\xe9tson \u2603 \U0001f600"), (b"", '\x7f\t"quoted\\"')],
)  # fmt: skip
def test_the_key_spells_the_device_as_those_of_engines_do(
    fake_driver: FakeCudart,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: str,
    model: bytes,
    name: str,
) -> None:
    """And records of earlier versions, whose key Python made."""
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE.replace("Fake H100", name))
    root = tmp_path / "root"
    for file, content in (
        ("etc/nv_tegra_release", release.encode()),
        ("proc/device-tree/model", model),
    ):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_bytes(content)
    device = describe_device(Driver.load(), tensorrt="").key_json()
    del device["tensorrt"]
    folder = find_folder(path)
    assert folder.device == device
    whole = {"version": 1, "content": folder.content, "device": device}
    assert folder.key == digest(whole)


@pytest.mark.parametrize(
    "variables",
    [
        {"EDGECOMPILE_CACHE": "relative/../cache/"},
        {"EDGECOMPILE_CACHE": "{}/a/./b//c/"},
        {"EDGECOMPILE_CACHE": "", "XDG_CACHE_HOME": "{}/xdg"},
        {"EDGECOMPILE_CACHE": "", "XDG_CACHE_HOME": "{}/xdg/"},
        {"EDGECOMPILE_CACHE": "", "XDG_CACHE_HOME": "relative", "HOME": "{}/home"},
        {"EDGECOMPILE_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "{}/home//"},
    ],
)
def test_where_the_cache_is(
    fake_driver: FakeCudart,
    library: CLibrary,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    file = record(path, [2, 2])
    assert os.path.commonpath([file, tmp_path]) == str(tmp_path)
    check(library, path, [2, 2])
    file.unlink()
    check(library, path, None)


def test_a_variant_without_alternatives_reads_nothing(
    fake_driver: FakeCudart, library: CLibrary, tmp_path: Path
) -> None:
    check(library, TritonBundle(tmp_path / "plain.ecb").write(), None)


def test_a_chosen_program_is_hashed(
    fake_driver: FakeCudart, library: CLibrary, tmp_path: Path
) -> None:
    bundle = TritonBundle(tmp_path / "x.ecb")
    bundle.add_alternatives("TOY_REPEAT=3")
    name = bundle.variant["alternatives"][1][0]
    bundle.bundle.files[name] += b"only here"
    path = bundle.write()
    record(path, [0, 1])
    victim = Path(path) / name
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.unlink()
    victim.write_bytes(data)
    with pytest.raises(c_library.CLibraryError, match="file-hash") as caught:
        library.open(path)
    assert caught.value.status == c_library.DAMAGED


@pytest.fixture
def cublaslt(fake_driver_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCublasLt:
    """The fake, in place of cuBLASLt."""
    fake = FakeCublasLt(fake_driver_path)
    monkeypatch.setenv("EDGECOMPILE_CUBLASLT", fake.path)
    return fake


def check_products(model: Any, cublaslt: FakeCublasLt, fault: str) -> None:
    """That a loader's model is right, and that cuBLASLt computes something unless it finds no algorithm."""
    for length in (5, 6, 40):
        inputs = make_inputs(length)
        got = model.run(inputs)
        for name, want in multiply(inputs).items():
            assert (got[name] == want).all()
    assert (cublaslt.products > 0) is (fault == "")


PRODUCTS = {"version": 130002, "rows": [[6, -1], [0]]}


@pytest.mark.parametrize("mode", ["default", "planned", "reduce-overhead"])
def test_both_have_cublaslt_compute_the_same_products(
    fake_driver: FakeCudart,
    library: CLibrary,
    cublaslt: FakeCublasLt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    write_record(path, choice=[0, 0], cublaslt=PRODUCTS)
    told: list[Any] = []
    for fault in ("", "none"):
        monkeypatch.setenv("FAKE_CUBLASLT", fault)
        with library.open(path, mode=mode.encode()) as model:
            check_products(model, cublaslt, fault)
            told.append(model.describe())
        with open_bundle(path, mode=mode) as python:
            check_products(python, cublaslt, fault)
            assert python.info["tuned"] == told[-1]["tuned"]
            assert python.info["scratch_bytes"] == told[-1]["scratch_bytes"]
    told = [item["tuned"] for item in told]
    assert told[0]["cublaslt"] == {**PRODUCTS, "failure": ""}
    assert told[1]["cublaslt"]["failure"].startswith("cublasLtMatmulAlgoGetHeuristic")


@pytest.mark.parametrize(
    "content",
    [{"rows": [[0, 0]]}, {"rows": [[0, -2], []]}, {"rows": [[0, 2**70], []]}, {"rows": [[0.5], []]},
     {"rows": None}, {"rows": [[2**62 + 1], []]}, {"version": "13"}, {"version": None},
     {"version": -2}, {"rows": [[-1, -1], []]}, {"rows": [[], []]}, None],
)  # fmt: skip
def test_both_judge_a_record_of_cublaslt_alike(
    fake_driver: FakeCudart,
    library: CLibrary,
    cublaslt: FakeCublasLt,
    tmp_path: Path,
    content: dict[str, Any] | None,
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    write_record(path, choice=[0, 0], cublaslt=None if content is None else {**PRODUCTS, **content})
    # No product at all is right, too.
    usable = content is None or content in ({"rows": [[-1, -1], []]}, {"rows": [[], []]})
    with library.open(path) as model, open_bundle(path) as python:
        told = model.describe()["tuned"]
        assert told == python.info["tuned"] and (told is not None) is usable
        if usable:
            assert told["cublaslt"] is None


def test_both_record_again_what_cublaslt_spoils(
    fake_driver: FakeCudart,
    library: CLibrary,
    cublaslt: FakeCublasLt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    write_record(path, choice=[0, 0], cublaslt={"version": 130002, "rows": [[0, 0], [0, 0]]})
    monkeypatch.setenv("FAKE_CUBLASLT", "capture")
    with library.open(path) as model, open_bundle(path) as python:
        for opened in (model, python):
            for length in (40, 3):
                for _ in range(12):
                    got = opened.run(make_inputs(length))
                for name, want in multiply(make_inputs(length)).items():
                    assert (got[name] == want).all()
            assert cublaslt.products > 0
            opened.run(make_inputs(3))
            assert cublaslt.products == 0  # the graph holds the kernels in its place
        told, info = model.describe(), python.info
        assert told["graphs"] == info["graphs"] == 2
        assert told["tuned"] == info["tuned"]
        assert "cublasLtMatmul failed" in told["tuned"]["cublaslt"]["failure"]


def test_warming_up_computes_large_runs(
    fake_driver: FakeCudart, library: CLibrary, cublaslt: FakeCublasLt, tmp_path: Path
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    write_record(path, choice=[0, 0], cublaslt={"version": 130002, "rows": [[40, -1], [-1, -1]]})
    cublaslt.products  # noqa: B018
    for lazy in (1, 0):
        with library.open(path, lazy=lazy, mode=b"default"):
            assert cublaslt.products == 1 - lazy
