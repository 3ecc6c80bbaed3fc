"""What is installed beside the package: other versions of its wheels, a bundle of a newer one, no numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import edgecompile
from edgecompile.runtime.base.errors import EdgecompileError, UnsupportedHostError
from edgecompile.runtime.cpu.host import choose_variant, describe_host
from edgecompile.runtime.format.manifest.parse import parse_manifest
from tests.runtime.bundles import DummyBundle

PACKAGE = Path(edgecompile.__file__).parent
CURE = (
    f"edgecompile 0.99.1 built it and this runtime is {edgecompile.__version__}: pip install --upgrade "
    "edgecompile-runtime, or python3 NAME.ecb COMMAND, which uses the bundle's own runtime"
)


def site(folder: Path, *wheels: str, packages: tuple[str, ...] = ()) -> Path:
    """A folder like that of an environment, with this package, the wheels' metadata and other packages."""
    (folder / "edgecompile").symlink_to(PACKAGE)
    for wheel in wheels:
        (folder / f"{wheel}.dist-info").mkdir()
    for name in packages:
        (folder / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    return folder


def run(folder: Path, *command: str) -> tuple[int, str]:
    """The exit code and stderr of Python with the packages of a folder, and no other with -S."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=folder
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "edgecompile", "build", "none", "--max-length", "8"),
        ("-m", "edgecompile.server", "none.ecb"),
        ("-m", "edgecompile.runtime", "info", "--host"),
    ],
)
def test_wheels_of_different_versions_are_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    folder = site(tmp_path, "edgecompile-0.2.0", "edgecompile_runtime-0.1.9", "numpy-2.0.0")
    code, said = run(folder, *command)
    assert code == 11
    assert said == (
        "error: edgecompile 0.2.0 and edgecompile-runtime 0.1.9 are installed over each other\n"
        "hint: pip uninstall --yes edgecompile-runtime; pip install --force-reinstall --no-deps edgecompile==0.2.0\n"
    )


def test_the_server_and_the_runtime_go_together(tmp_path: Path) -> None:
    folder = site(tmp_path, "edgecompile_runtime-0.10.0", "edgecompile_server-0.9.0")
    code, said = run(folder, "-m", "edgecompile.server", "none.ecb")
    assert code == 11 and "edgecompile-runtime 0.10.0 and edgecompile-server 0.9.0" in said
    assert "hint: pip install edgecompile-runtime==0.10.0 edgecompile-server==0.10.0\n" in said


def test_wheels_of_one_version_are_not_refused(tmp_path: Path) -> None:
    folder = site(tmp_path, "edgecompile_runtime-0.2.0", "edgecompile_server-0.2.0")
    code, said = run(folder, "-m", "edgecompile.runtime", "info", "--host")
    assert (code, said) == (0, "")


def test_grpc_needs_two_packages(tmp_path: Path) -> None:
    packages = ("numpy", "numpy.libs", "grpc")
    folder = site(tmp_path, packages=packages)
    code, said = run(folder, "-S", "-m", "edgecompile.server", "none.ecb", "--grpc-port", "9")
    assert code == 24 and "Traceback" not in said
    assert "--grpc-port needs the Python packages grpcio and protobuf: pip install" in said


def test_numpy_is_missing(bundle: DummyBundle, tmp_path: Path) -> None:
    launcher = (PACKAGE / "runtime" / "launcher.py").read_bytes()
    bundle.files["__main__.py"] = launcher
    for path in (PACKAGE / "runtime").rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        bundle.files[f"runtime/edgecompile/{name}"] = path.read_bytes()
    bundle.files["runtime/edgecompile/__init__.py"] = (PACKAGE / "__init__.py").read_bytes()
    code, said = run(tmp_path, "-S", bundle.write(), "selftest")
    assert code == 1
    assert said == (
        "error: the runtime needs the Python package numpy, which isn't installed here\n"
        "hint: pip install numpy\n"
    )


@pytest.mark.parametrize("change", ["version", "value"])
@pytest.mark.parametrize("newer", [True, False])
def test_a_newer_bundle_that_is_refused_names_the_cure(
    bundle: DummyBundle, tmp_path: Path, change: str, newer: bool
) -> None:
    document = bundle.document
    document["built_by"] = {"edgecompile": "0.99.1" if newer else edgecompile.__version__}
    if change == "version":
        document["format_version"] = 2
    else:
        document["inputs"][0]["dtype"] = "int4"
    code, said = run(site(tmp_path), "-m", "edgecompile.runtime", "selftest", bundle.write())
    assert code == {"version": 21, "value": 20}[change]
    assert said.endswith(f"\nhint: {CURE}\n") == newer


@pytest.mark.parametrize("newer", [True, False])
def test_a_newer_bundle_without_a_known_backend_names_the_cure(
    bundle: DummyBundle, newer: bool
) -> None:
    document = bundle.document
    document["built_by"] = {"edgecompile": "0.99.1" if newer else edgecompile.__version__}
    for variant in document["variants"]:
        variant.update(backend="quantum", requires=[])
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    with pytest.raises(UnsupportedHostError, match="backend quantum, unknown here") as caught:
        choose_variant(manifest, describe_host())
    assert (caught.value.hint == CURE) == newer


@pytest.mark.parametrize("built_by", [{"edgecompile": "x" * 5000}, {"edgecompile": "9\n9"}, [], 5])
def test_a_hint_says_nothing_of_what_is_malformed(bundle: DummyBundle, built_by: object) -> None:
    bundle.document.update(built_by=built_by, format_version=3)
    with pytest.raises(EdgecompileError) as caught:
        parse_manifest(json.dumps(bundle.document).encode())
    assert caught.value.hint is not None
    assert len(caught.value.hint) < 300 and "\n" not in caught.value.hint
