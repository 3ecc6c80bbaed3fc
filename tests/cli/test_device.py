"""The device's commands on the host, with the options and the reader of the runtime itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.cli import DEVICE_COMMANDS
from edgecompile.runtime.commands.run import _describe, format_run
from tests.cli.command import python, run
from tests.hostile.toy import build_libraries, find_compiler, make_toy_bundle

IDS = np.ones((1, 5), np.int64)
INPUTS = {"input_ids": IDS, "attention_mask": IDS}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_compiler() is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("device") / "toy.ecb"
    make_toy_bundle(folder, build_libraries()).write()
    return folder


def test_selftest(toy: Path) -> None:
    done = run("selftest", str(toy), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["ok"] and done.stderr.startswith("opened ")
    (toy / "planted.py").touch()
    try:
        done = run("selftest", str(toy))
    finally:
        (toy / "planted.py").unlink()
    assert (done.exit_code, done.stdout) == (22, "")
    assert "planted.py: isn't listed" in done.stderr and "\nhint: " in done.stderr
    done = run("selftest", str(toy / "absent"), "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["code"], error["class"]) == (20, 20, "BundleError")
    assert done.stderr == f"error: {error['message']}\nhint: {error['hint']}\n"


@pytest.mark.parametrize("form", ["npz", "json"])
def test_run_reads_a_file_and_writes_another(toy: Path, tmp_path: Path, form: str) -> None:
    file, result = tmp_path / f"inputs.{form}", tmp_path / "outputs.npz"
    if form == "npz":
        np.savez(file, **INPUTS)  # type: ignore[arg-type]
    else:
        file.write_text(json.dumps({name: array.tolist() for name, array in INPUTS.items()}))
    done = run("run", str(toy), "--inputs", str(file))
    assert done.exit_code == 0 and "\nstates: float32[1, 5, 2]  0 0" in done.stdout, done.stderr
    told = json.loads(run("run", str(toy), "--inputs", str(file), "--json").stdout)["outputs"]
    done = run("run", str(toy), "--inputs", str(file), "--output", str(result))
    assert done.stdout.endswith(f"wrote {result}\n")
    with np.load(result) as written:
        np.testing.assert_array_equal(written["states"], np.float32(told["states"]["values"]))


def test_run_counts_what_is_not_finite() -> None:
    entry = _describe(np.array([1, np.nan, np.inf], np.float32), values=True)
    assert (entry["values"], entry["not_finite"]) == ([1.0, None, None], 2)
    assert format_run({"outputs": {"y": entry}, "output": None}) == [
        "y: float32[3]  1 ? ?  (2 of 3 are NaN or infinite)"
    ]


def test_run_takes_one_array_where_the_others_have_defaults(tmp_path: Path) -> None:
    if find_compiler() is None:
        pytest.skip("needs a C compiler")
    bundle = make_toy_bundle(tmp_path / "toy.ecb", build_libraries())
    bundle.document["inputs"][1]["default"] = 1
    bundle.write()
    np.save(tmp_path / "ids.npy", IDS)
    np.savez(tmp_path / "both.npz", **INPUTS)  # type: ignore[arg-type]
    alone, both = (
        json.loads(run("run", str(tmp_path / "toy.ecb"), "--inputs", str(file), "--json").stdout)[
            "outputs"
        ]
        for file in (tmp_path / "ids.npy", tmp_path / "both.npz")
    )
    assert alone == both and alone


def zipped(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value, allow_pickle=True)
    return stream.getvalue()


def archive() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **INPUTS)  # type: ignore[arg-type]
    return stream.getvalue()


def damaged() -> bytes:
    """Its first member can't be decompressed."""
    data = bytearray(archive())
    start = 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")
    data[start : start + 8] = b"\xff" * 8
    return bytes(data)


def encrypted() -> bytes:
    data = bytearray(archive())
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + offset] |= 1
    return bytes(data)


def headed(header: bytes) -> bytes:
    """A .npy file of a header alone."""
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header


HUGE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000000,), }\n"


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("x.npz", b"", "x.npz"),
        ("x.npz", b"PK\3\4", "x.npz"),
        ("x.npy", zipped(np.ones(3)), "the model needs input_ids, attention_mask"),
        ("x.npy", zipped(np.array([{}], object)), "x.npy: holds objects, not numbers"),
        ("x.json", b"[1]", "isn't an object of inputs"),
        ("x.json", b"{", "x.json"),
        ("x.json", b'{"input_ids": [[1], [1, 2]]}', "input_ids: rows of unequal lengths"),
        ("x.json", b'{"input_ids": [[1]]}', "attention_mask"),
        ("x.json", b'{"input_ids": [["a"]], "attention_mask": [[1]]}', "input_ids"),
        ("x.npz", damaged(), "x.npz: Error -3 while decompressing"),
        ("x.npz", encrypted(), "is encrypted"),
        ("x.npy", headed(HUGE[:50]), "x.npy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_inputs_that_cannot_be_read(
    toy: Path, tmp_path: Path, name: str, data: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(data)
    done = run("run", str(toy), "--inputs", str(tmp_path / name))
    assert (done.exit_code, done.stdout) == (24, "") and told in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_inputs_that_do_not_fit_into_memory(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(headed(HUGE))
    done = run("run", str(toy), "--inputs", str(tmp_path / "x.npy"))
    assert (done.exit_code, done.stdout) == (73, ""), done.stderr
    assert f"reading {tmp_path / 'x.npy'}: Unable to allocate" in done.stderr
    assert "\nhint: " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", DEVICE_COMMANDS)
def test_usage(command: str, tmp_path: Path) -> None:
    done = run(command)
    assert done.exit_code == 2 and "arguments are required: BUNDLE" in done.stderr
    assert f"{command} --help'" in done.stderr
    arguments = ["--inputs", "x"] if command == "run" else []
    done = run(command, str(tmp_path), *arguments)
    assert done.exit_code == (24 if command in ("encode", "generate") else 20), done.stderr


def test_each_side_points_to_the_other() -> None:
    done = run("finish", "x.ecb")
    assert done.exit_code == 2 and "python3 BUNDLE finish" in done.stderr
    for name, told in (("build", "edgecompile build"), ("slefts", "commands: info, selftest, ")):
        process = python("-m", "edgecompile.runtime", name)
        _, stderr = process.communicate()
        assert process.returncode == 2 and told in stderr and "coldstart" not in stderr
