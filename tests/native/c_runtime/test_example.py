"""The example program and the documented ways to build, on each architecture."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.golden.cases import list_cases, read_case
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.hosts.emulation import build_encoder_for_any
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH, Machine
from tests.needs import need

pytestmark = pytest.mark.slow

DOCUMENT = c_library.REPOSITORY / "docs" / "c-runtime.md"
SOURCES = [c_library.EXAMPLE / "run.c", c_library.EXAMPLE / "npz.c"]


@pytest.fixture(scope="module")
def bundle(shared_folder: Path, tiny_model: Path) -> Path:
    """For x86-64 and aarch64; the one of tests/builds/test_emulated.py."""
    given = os.environ.get("EDGECOMPILE_TEST_BUNDLE")
    if given:
        return Path(given)
    return build_encoder_for_any(shared_folder, tiny_model)


#: Without sanitizers it runs here as documented, in test_the_documented_commands_work.
@pytest.fixture(scope="module", params=[*sorted(set(MACHINES) - {NATIVE_ARCH}), "sanitized"])
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[NATIVE_ARCH if request.param == "sanitized" else str(request.param)]


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, machine: Machine) -> Path:
    flags = c_library.SANITIZERS if "sanitized" in request.node.name else ()
    return c_library.build(machine, "example", SOURCES, flags=flags)


def foreign(told: dict[str, Any], machine: Machine) -> list[list[str]]:
    """Why the variants for other architectures were refused."""
    refused = told["refused_variants"].items()
    return [reasons for name, reasons in refused if not name.startswith(machine.arch)]


def test_golden_vectors(machine: Machine, program: Path, bundle: Path, tmp_path: Path) -> None:
    cases = list_cases(str(bundle / "golden"))
    written = tmp_path / "outputs"
    done = machine.run(
        [program, "-o", written, bundle, *(path for _, _, path in cases)], **c_library.SANITIZED
    )
    assert done.returncode == 0, done.stderr
    description, *verdicts = done.stdout.splitlines()
    told = json.loads(description)
    assert told["host"]["arch"] == machine.arch
    assert told["variant"].startswith(machine.arch)
    others = [f"is for {item}, this is {machine.arch}" for item in {*MACHINES} - {machine.arch}]
    assert all(others == reasons for reasons in foreign(told, machine))
    assert len(verdicts) >= len(cases) >= 6
    assert all(line.endswith(": ok") for line in verdicts)
    if machine.arch != NATIVE_ARCH:
        return
    with open_bundle(bundle) as model:
        wanted = b""
        for bucket, _, path in cases:
            with open(path, "rb") as stream:
                inputs = read_case(stream.fileno(), path, model.manifest).inputs
            wanted += b"".join(x.tobytes() for x in model.run_bucket(bucket, inputs).values())
    assert written.read_bytes() == wanted


def test_caches_of_a_golden_vector(decoder_bundle: Path, tmp_path: Path) -> None:
    """The file doesn't align its arrays, whatever the length of their names."""
    program = c_library.build(MACHINES[NATIVE_ARCH], "example", SOURCES)
    with open_bundle(decoder_bundle, warmup=False) as model:
        sizes = {name: extent.lo for name, extent in model.manifest.axes.items()}
        inputs = make_inputs(model.manifest, sizes)
        wanted = model.run({name: array.copy() for name, array in inputs.items()})
    case = tmp_path / "0-case.npz"
    for pad in range(8):
        arrays = {"x" * pad: np.zeros(1, np.uint8)} if pad else {}
        arrays |= {f"in.{name}": array for name, array in inputs.items()}
        np.savez(case, **arrays, **{f"out.{name}": array for name, array in wanted.items()})
        done = subprocess.run([program, decoder_bundle, case], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_zeros(machine: Machine, program: Path, bundle: Path, tmp_path: Path) -> None:
    done = machine.run([program, "-o", tmp_path / "outputs", bundle], **c_library.SANITIZED)
    assert done.returncode == 0, done.stderr
    # The other architecture's last bits may differ: here it counts that it runs.
    same = machine.arch == NATIVE_ARCH
    with open_bundle(bundle) as model:
        sizes = {name: extent.lo for name, extent in model.manifest.axes.items()}
        zeros = {k: np.zeros_like(v) for k, v in make_inputs(model.manifest, sizes).items()}
        wanted = model.run(zeros)
    written = (tmp_path / "outputs").read_bytes()
    assert len(written) == sum(array.nbytes for array in wanted.values())
    assert not same or written == b"".join(array.tobytes() for array in wanted.values())
    for name, array in wanted.items():
        assert f"{name}[{', '.join(map(str, array.shape))}] begins with" in done.stdout


def test_a_wrong_golden_vector_is_noticed(
    machine: Machine, program: Path, bundle: Path, tmp_path: Path
) -> None:
    bucket, case, path = list_cases(str(bundle / "golden"))[0]
    folder = BundleFolder(str(bundle))
    with open(path, "rb") as stream:
        arrays = read_case(stream.fileno(), path, folder.manifest)
    folder.close()
    wrong = tmp_path / f"{bucket}-{case}.npz"
    outputs = {f"out.{name}": array + 1 for name, array in arrays.outputs.items()}
    np.savez(wrong, **outputs, **{f"in.{name}": array for name, array in arrays.inputs.items()})
    done = machine.run([program, bundle, wrong], **c_library.SANITIZED)
    assert done.returncode == 27, done.stderr
    assert "FAILED" in done.stdout
    wrong.write_bytes(wrong.read_bytes()[:-40])
    assert machine.run([program, bundle, wrong], **c_library.SANITIZED).returncode == 74


def test_a_missing_bundle(machine: Machine, program: Path, tmp_path: Path) -> None:
    done = machine.run([program, tmp_path / "none.ecb"], **c_library.SANITIZED)
    assert done.returncode == c_library.BUNDLE
    assert "doesn't exist [bundle-folder]\nhint: check the path" in done.stderr


# --- The document
def shell_blocks() -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(r"^```shell\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def hurried_compilers(folder: Path) -> Path:
    """A folder for $PATH whose compilers don't optimize: these builds have to work, not to be fast."""
    folder.mkdir()
    for name in ("g++", "c++"):
        real = shutil.which(name)
        assert real is not None, name
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(real)} "$@" -O0 -g0\n')
        (folder / name).chmod(0o755)
    return folder


def run_block(block: str, folder: Path, compilers: Path) -> None:
    places = [str(compilers), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(places),
        "PYTHONPATH": str(c_library.REPOSITORY),
    }
    done = subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_the_documented_commands_work(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(c_library.REPOSITORY / "examples")
    (tmp_path / "minilm.ecb").symlink_to(bundle)
    blocks = shell_blocks()
    assert len(blocks) == 3
    need("cmake", "cmake")
    # Each reader of the page runs those that apply; what the first defines the others use. The tests above build the
    # same sources for aarch64.
    library, example, cmake = blocks
    first, _ = library.split("\n", 1)
    compilers = hurried_compilers(tmp_path / "compilers")
    for block in (library, example, f"{first}\n{cmake}"):
        run_block(block, tmp_path, compilers)


def test_the_documented_programs_compile(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    programs = re.findall(r"^```c\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    for number, program in enumerate(programs):
        source = tmp_path / f"program-{number}.c"
        source.write_text(program)
        for compiler, standard in (("gcc", "-std=c99"), ("g++", "-std=c++17")):
            language = ["-x", "c++"] if compiler == "g++" else []
            command = [
                MACHINES[NATIVE_ARCH].tool(compiler),
                standard,
                "-Wall",
                "-Wextra",
                "-Werror",
            ]
            command += [*language, f"-I{c_library.HEADER.parent}", "-fsyntax-only", str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


def test_status_codes_are_the_exit_codes() -> None:
    from edgecompile.runtime.base import errors

    header = c_library.HEADER.read_text()
    codes = {name: int(code) for name, code in re.findall(r"^  ECR_(\w+) = (\d+),", header, re.M)}
    wanted = {
        "BUNDLE": errors.BundleError,
        "VERSION": errors.FormatVersionError,
        "DAMAGED": errors.DamagedBundleError,
        "HOST": errors.UnsupportedHostError,
        "INPUT": errors.InputError,
        "OUTSIDE": errors.OutsideBucketsError,
        "NATIVE": errors.NativeError,
        "GPU": errors.GpuError,
        "NO_GPU": errors.GpuUnavailableError,
        "MODE": errors.ModeError,
        "CLOSED": errors.ModelClosedError,
        "LOADER": errors.LoaderNeededError,
        "FILES": errors.OpenFilesError,
        "PERMISSION": errors.FilePermissionError,
        "NOEXEC": errors.NoExecError,
        "MEMORY": errors.MemoryLimitError,
        "UNSIGNED": errors.UnsignedBundleError,
        "UNTRUSTED": errors.UntrustedBundleError,
        "REFUSED": errors.RefusedReleaseError,
        "EXPIRED": errors.ExpiredReleaseError,
        "NO_CRYPTO": errors.CryptoMissingError,
    }
    assert {name: codes[name] for name in wanted} == {k: v.exit_code for k, v in wanted.items()}
    assert (codes["OK"], codes["INTERNAL"]) == (0, 70)
    documented = re.findall(
        r"^\| `ECR_(\w+)` \| (.+) \|$", DOCUMENT.read_text(encoding="utf-8"), re.M
    )
    names = {name: f"`{error.__name__}`" for name, error in wanted.items()}
    assert dict(documented) == {**names, "OK": "none", "INTERNAL": "none: a bug"}
