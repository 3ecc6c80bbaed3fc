"""The wheels in empty environments: docs/install.md's commands, and a host without a compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from edgecompile.targets.profile import list_variants, load_variant
from edgecompile.toolchain.compilers import find_toolchain
from tests.project.tutorials import commands
from tests.project.wheels import run_from_wheels

pytestmark = pytest.mark.slow
#: The first three build a bundle.
COMMANDS = commands("install.md")[:3]
TEXTS = "How do I read a file line by line?\nsort a list\n" * 40
#: A compiler's and binutils' programs; no host without a compiler has them.
TOOLS = ("ar", "as", "cc", "c++", "gcc", "g++", "ld", "nm", "objcopy", "objdump")


@pytest.fixture(scope="module")
def built(dist: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's commands made a bundle, for one variant and with a work folder."""
    folder = tmp_path_factory.mktemp("host")
    shutil.copytree(tiny_model, folder / "my-encoder")
    (folder / "queries.txt").write_text(TEXTS)
    lines = [
        line.replace(" --output", " --quick --target cpu-x86-64-v3 --work-dir work --output")
        for line in COMMANDS
    ]
    assert lines != COMMANDS
    # Objects of other tests would stand in for the wheel's libraries.
    run_from_wheels(lines, folder, dist, {"EDGECOMPILE_CACHE_DIR": str(folder / "cache")})
    return folder


@pytest.fixture(scope="module")
def path_without_tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH of a host without a compiler: everything else that this one has."""
    folder = tmp_path_factory.mktemp("bin")
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).glob("*"):
            if program.name not in TOOLS and not program.name.endswith(
                tuple(f"-{t}" for t in TOOLS)
            ):
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    return str(folder)


def test_three_commands_lead_to_a_verified_bundle(built: Path) -> None:
    assert len(COMMANDS) == 3
    report = json.loads((built / "my-encoder.ecb" / "reports" / "verify.json").read_text())
    assert report["ok"] and report["cases"] > 0
    # What was compiled is the model's own code: the wheel brought the runtime.
    compiled = list((built / "cache" / "objects").rglob("*.o"))
    assert 0 < len(compiled) <= 8


def test_every_variant_is_in_the_wheel(dist: Path) -> None:
    (wheel,) = dist.glob("edgecompile-*.whl")
    assert "manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        held = {name.split("/")[2] for name in archive.namelist() if "/_prebuilt/" in name}
    kept = {name.rpartition("-")[0] for name in held}
    variants = [load_variant(name) for name in list_variants()]
    archs = {
        v.arch for v in variants if v.arch == "x86-64" or shutil.which("aarch64-linux-gnu-g++")
    }
    assert find_toolchain("x86-64")
    assert kept == {
        *(v.name for v in variants if v.arch in archs),
        *(f"{arch}-{part}" for arch in archs for part in ("gpu", "probe")),
    }


def test_a_host_without_a_compiler(built: Path, dist: Path, path_without_tools: str) -> None:
    """It can do everything but compile a model's own code, which it says."""
    texts = "--texts queries.txt"
    command = "env/bin/edgecompile"
    able = [
        f"{command} plan --model my-encoder {texts} --target raspberry-pi-5",
        f"{command} pack my-encoder --work-dir work --target cpu-x86-64-v3 --output packed.ecb",
        f"{command} verify packed.ecb --model my-encoder",
        f"{command} bench packed.ecb --rounds 1 --runs 2 --cold-runs 1",
    ]
    environment = {"PATH": path_without_tools, "EDGECOMPILE_CACHE_DIR": str(built / "none")}
    run_from_wheels(able, built, dist, environment)

    unable = f"{command} build my-encoder {texts} --target cpu-x86-64-v3 --output again.ecb"
    run_from_wheels([f"{unable} 2> told || test $? = 35"], built, dist, environment)
    told = (built / "told").read_text()
    assert "error: no g++, objcopy, nm for x86-64 on this machine" in told
    assert "hint: on Debian or Ubuntu: apt-get install g++ binutils" in told


def test_a_device_runs_it_from_the_runtime_s_wheel(
    built: Path, dist: Path, device_python: str, tmp_path: Path
) -> None:
    """Beside numpy alone, with the server's wheel."""
    wheels = [str(path) for name in ("runtime", "server") for path in dist.glob(f"*_{name}-*.whl")]
    assert len(wheels) == 2
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path / "site")
    command = [
        device_python,
        "-m",
        "edgecompile.runtime",
        "selftest",
        str(built / "my-encoder.ecb"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [*command, "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and json.loads(done.stdout)["ok"], done.stdout + done.stderr
