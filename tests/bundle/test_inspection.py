"""Bundles looked at from outside: who could run them, and libraries that aren't what they should be."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from edgecompile.bundle.inspection import audit_bundle, judge_target
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.targets.profile import load_target

LIBRARY = """
#include <stddef.h>
#include <dlfcn.h>
void k(float* restrict a, const float* restrict b, int n) {
  for (int i = 0; i < n; i++) a[i] += b[i] * 2;
}
void* g(void) { return dlsym(NULL, "g"); }
void nobody_has_this(void);
void f(void) { nobody_has_this(); }
"""


def read(bundle: Path) -> Manifest:
    folder = BundleFolder(str(bundle))
    try:
        return folder.manifest
    finally:
        folder.close()


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy whose x86-64-v3 programs are, in turn: a bad library, cut off, and as they were."""
    copy = tmp_path / "copy.ecb"
    shutil.copytree(tiny_bundle, copy)
    code = copy / "code" / "x86-64-v3"
    (tmp_path / "bad.c").write_text(LIBRARY)
    command = ["gcc", "-O3", "-march=x86-64-v3", "-shared", "-fPIC", "bad.c", "-Wl,-z,execstack"]
    subprocess.run([*command, "-o", str(code / "bucket-0.so")], cwd=tmp_path, check=True)
    data = (code / "bucket-1.so").read_bytes()
    (code / "bucket-1.so").write_bytes(data[:3000])
    return copy


def one_variant(manifest: Manifest, glibc: str | None) -> Manifest:
    (variant,) = (v for v in manifest.variants if v.name == "x86-64-v3")
    return manifest._replace(variants=(variant._replace(glibc=glibc),))


def test_bad_libraries_are_findings(bundle: Path) -> None:
    verdicts = audit_bundle(bundle, one_variant(read(bundle), "2.17"))
    probe, runtime, bad, cut, good = verdicts
    assert probe.ok and probe.library == "libecprobe.so" and probe.variant == "x86-64"
    assert {finding.rule for finding in bad.findings} == {"execstack", "glibc", "undefined"}
    assert any("dlsym needs glibc 2.34" in finding.what for finding in bad.findings)
    assert any("nobody_has_this" in finding.what for finding in bad.findings)
    (damage,) = cut.findings
    assert damage.rule == "elf" and "damaged ELF file" in damage.what
    # What the manifest promises is too little for the good ones, too.
    for verdict in (runtime, good):
        assert {finding.rule for finding in verdict.findings} == {"glibc"}
        assert "the manifest promises 2.17 only" in verdict.findings[0].what


def test_a_system_may_be_newer_than_the_promise(bundle: Path) -> None:
    manifest = one_variant(read(bundle), "2.17")
    verdicts = audit_bundle(bundle, manifest, load_target("cpu-x86-64-v3"))
    assert [verdict.ok for verdict in verdicts] == [True, True, False, False, True]
    assert {verdict.target for verdict in verdicts} == {"cpu-x86-64-v3"}


@pytest.mark.parametrize("report", [None, '[1, {"vectorised": 1}, {"vectorised": true}]'])
def test_the_report_of_the_build_may_be_missing_or_wrong(bundle: Path, report: str | None) -> None:
    path = bundle / "reports" / "audit.json"
    manifest = one_variant(read(bundle), "2.34")
    assert audit_bundle(bundle, manifest)[-1].vectorised
    if report is None:
        path.unlink()
    else:
        path.write_text(report)
    assert not audit_bundle(bundle, manifest)[-1].vectorised


def test_a_target_whose_python_is_too_old(tiny_bundle: Path) -> None:
    old = dataclasses.replace(load_target("cpu-x86-64-v3"), python="3.7")
    verdict = judge_target(read(tiny_bundle), old)
    assert not verdict["ok"] and verdict["problem"] == "its Python 3.7 is older than 3.8"
    assert verdict["chosen"] == {"x86-64": "x86-64-v3"}
