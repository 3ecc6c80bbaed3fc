"""Equal inputs make equal bundles, wherever and however often they are built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgecompile.runtime.open.choose import VARIANT_VARIABLE
from edgecompile.toolchain.compilers import cache_directory

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]


def contents(bundle: Path) -> dict[str, bytes]:
    """Every file's bytes by its path in the bundle."""
    files = (path for path in bundle.rglob("*") if path.is_file())
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in files}


def differing(one: Path, other: Path) -> set[str]:
    """The names of files that aren't the same in both."""
    a, b = contents(one), contents(other)
    return {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}


def build(
    where: Path, *arguments: str | Path, variables: Mapping[str, str | Path] | None = None
) -> None:
    """Runs edgecompile build in a process of its own, as another user of another folder would."""
    where.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        **{name: str(value) for name, value in (variables or {}).items()},
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-m", "edgecompile", "build", *map(str, arguments)]
    command += ["--target", "cpu-x86-64-v3", "--max-length", "32", "--batch", "1:2"]
    command += ["--mode", "exact"]
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    """A folder with lengths, a calibration of the tiny model, and a bundle built from them."""
    folder = tmp_path_factory.mktemp("reproducible")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EDGECOMPILE_")}
    environment["PYTHONPATH"] = str(tiny_bundle / "runtime")
    # The variant that is built below, also where the machine could run a better one.
    environment[VARIANT_VARIABLE] = "x86-64-v3"
    command = [sys.executable, "-m", "edgecompile.runtime", "bench", str(tiny_bundle)]
    command += ["--calibrate", str(folder / "costs.json"), "--seconds", "1", "--cold-runs", "1"]
    command += ["--threads", "1"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder / "lengths.txt").write_text("3\n4\n4\n7\n9\n9\n9\n20\n31\n")
    return folder


@pytest.fixture(scope="module")
def first(folder: Path, tiny_model: Path) -> Path:
    """One bundle, of one bucket, whose work folder is kept."""
    arguments = ("--lengths", "lengths.txt", "--calibration", "costs.json", "--threads", "1")
    build(folder, tiny_model, *arguments, "--buckets", "1", "-o", "first", "--work-dir", "work")
    return folder / "first.ecb"


def test_a_bundle_names_no_folder_of_its_inputs(first: Path, tiny_model: Path) -> None:
    for name, data in contents(first).items():
        for path in (first.parent, tiny_model.parent):
            assert str(path).encode() not in data, name
    plan = json.loads((first / "reports" / "plan.json").read_text())
    assert "lengths.txt" in json.dumps(plan)


def test_other_costs_change_what_tells_of_them_alone(
    first: Path, folder: Path, tiny_model: Path
) -> None:
    """Costs that are measured differ from build to build: this is what that may change."""
    document = json.loads((folder / "costs.json").read_text())
    for point in document["points"]:
        point["ms"] *= 1.25
    other = folder / "other"
    other.mkdir()
    (other / "costs.json").write_text(json.dumps(document))
    arguments = ("--lengths", folder / "lengths.txt", "--calibration", "costs.json")
    options = ("--threads", "1", "--buckets", "1", "--work-dir", folder / "work")
    build(other, tiny_model, *arguments, *options, "-o", "first.ecb")
    different = differing(first, other / "first.ecb")
    assert different == {"manifest.json", "reports/plan.json", "reports/report.html"}
    one, two = (json.loads((b / "manifest.json").read_text()) for b in (first, other / "first.ecb"))
    changed = {key for key in one if one[key] != two[key]}
    assert changed == {"plan", "expected", "files"}


@pytest.mark.parametrize("cached", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_two_builds_in_different_folders_are_the_same_bytes(
    first: Path, folder: Path, tiny_model: Path, cached: bool
) -> None:
    """Nothing is shared: no folder, no hash seed, no time zone; each night no cache of objects and no
    precompiled headers either, so that the whole native runtime is compiled again.

    An object comes from the cache only if its source has the same bytes.
    """
    elsewhere = folder / f"some where {cached}" / "else"
    elsewhere.mkdir(parents=True)
    shutil.copytree(tiny_model, elsewhere / "the model")
    for name in ("lengths.txt", "costs.json"):
        shutil.copy(folder / name, elsewhere / name)
    (elsewhere / "tmp").mkdir()
    variables: dict[str, str | Path] = {
        "EDGECOMPILE_CACHE_DIR": cache_directory() if cached else elsewhere / "cache",
        "EDGECOMPILE_PRECOMPILED": os.environ.get("EDGECOMPILE_PRECOMPILED", "") if cached else "0",
        "TMPDIR": elsewhere / "tmp",
        "HOME": elsewhere,
        "PYTHONHASHSEED": "12345",
        "TZ": "Pacific/Auckland",
        "LC_ALL": "C",
    }
    inputs = ("--lengths", elsewhere / "lengths.txt", "--calibration", elsewhere / "costs.json")
    options = ("--threads", "1", "--buckets", "1", "--jobs", "1", "-o", elsewhere / "out" / "first")
    build(folder / "cwd", elsewhere / "the model", *inputs, *options, variables=variables)
    assert differing(first, elsewhere / "out" / "first.ecb") == set()
    assert list((elsewhere / "tmp").iterdir()) == [], "left behind"
