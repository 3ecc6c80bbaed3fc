"""Bundles as earlier versions wrote them open with both runtimes.

A file in tests/data/formats for each version has the manifest's keys of its time, and the functions that its runtime
library hadn't. A bundle that is built now is reduced to that. The promise is in docs/bundle.md.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edgecompile
from edgecompile.runtime.cpu.functions import OPTIONAL
from edgecompile.targets.profile import load_variant
from edgecompile.toolchain.compilers import dynamic_symbols, find_toolchain, link_shared
from edgecompile.toolchain.native import RUNTIME_FLAGS, compile_native, runtime_library
from tests.needs import need

REPOSITORY = Path(__file__).resolve().parents[2]
FORMATS = {
    path.stem: json.loads(path.read_text())
    for path in (REPOSITORY / "tests" / "data" / "formats").glob("*.json")
}
VARIANT = "x86-64-v3"
#: In a process of its own: a library of the same SONAME may be loaded in this one.
C_PROGRAM = """
import os, sys
from edgecompile.runtime.format.golden.compare import compare_arrays
from edgecompile.runtime.format.golden.cases import read_case
from edgecompile.runtime.format.manifest.parse import parse_manifest
from tests.native.c_runtime.c_library import CLibrary, build_library
bundle = sys.argv[1]
manifest = parse_manifest(open(bundle + "/manifest.json", "rb").read())
with CLibrary(build_library()).open(bundle) as model:
    for item in manifest.golden:
        case = read_case(os.open(bundle + "/" + item.file, os.O_RDONLY), item.file, manifest)
        got = model.run(case.inputs)
        for name, want in case.outputs.items():
            margin = case.margins.get(name, 0.0)
            assert compare_arrays(got[name], want, manifest.tolerance, margin=margin).ok, (item, name)
print(len(manifest.golden))
"""


def reduced(value: Any, form: Any) -> Any:
    """A value with the keys that a form has: null takes all of it, "*" stands for any key."""
    if form is None:
        return value
    if isinstance(form, list):
        return [reduced(item, form[0]) for item in value]
    if "*" in form:
        return {key: reduced(item, form["*"]) for key, item in value.items()}
    return {key: reduced(value[key], form[key]) for key in form if key in value}


def earlier(bundle: Path, folder: Path, version: str) -> Path:
    """A copy of a bundle as a version would have written it, for one variant."""
    form = FORMATS[version]
    copy = folder / "earlier.ecb"
    shutil.copytree(bundle, copy)
    manifest = reduced(json.loads((copy / "manifest.json").read_text()), form["manifest"])
    manifest["variants"] = [item for item in manifest["variants"] if item["name"] == VARIANT]
    if form["absent_functions"]:
        relink(copy / manifest["variants"][0]["runtime"], form["absent_functions"])
    if "text" not in manifest:
        shutil.rmtree(copy / "tokenizer")
    kept = {}
    for name in filter(lambda name: (copy / name).is_file(), manifest["files"]):
        data = (copy / name).read_bytes()
        kept[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"] = kept
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def relink(library: Path, absent: list[str]) -> None:
    """Replaces a runtime library by one of the same SONAME without some functions."""
    made = runtime_library(load_variant(VARIANT))
    toolchain = find_toolchain(made.arch)
    (part,) = made.parts
    flags = part.flags[len(RUNTIME_FLAGS) :]
    objects = [item.path for item in compile_native(toolchain, part.sources, flags)]
    exports = sorted(dynamic_symbols(library, defined=True).difference(absent))
    link_shared(toolchain, objects, library, exports=exports, soname=library.name)
    assert not dynamic_symbols(library, defined=True).intersection(absent)


@pytest.fixture(params=sorted(FORMATS), ids=str)
def bundle(request: pytest.FixtureRequest, tiny_bundle: Path, tmp_path: Path) -> Path:
    need("g++", "g++")
    return earlier(tiny_bundle, tmp_path, request.param)


def test_both_runtimes_open_it_and_answer_as_eager(bundle: Path) -> None:
    command = [sys.executable, "-m", "edgecompile.runtime", "selftest", str(bundle), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    golden = json.loads((bundle / "manifest.json").read_text())["golden"]
    assert report["ok"] and len(report["cases"]) >= len(golden) > 0
    command = [sys.executable, "-c", C_PROGRAM, str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) == len(golden)


def test_the_builder_writes_the_keys_of_the_newest_version(tiny_bundle: Path) -> None:
    """A key that isn't in the file of this version is new: earlier bundles lack it, and must open all the same."""
    newest = max(FORMATS, key=lambda version: [int(part) for part in version.split(".")])
    assert newest == edgecompile.__version__, "copy the newest file for the version to come"
    manifest = json.loads((tiny_bundle / "manifest.json").read_text())
    form = FORMATS[newest]["manifest"]
    assert reduced(manifest, form) == manifest
    assert set(form) == set(manifest)


def test_functions_that_were_added_are_optional() -> None:
    optional = {name for name, _, _ in OPTIONAL}
    for form in FORMATS.values():
        assert set(form["absent_functions"]) <= optional
