"""describe: what info says of a bundle, this machine, and why a variant is or isn't loaded."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgecompile.runtime
from edgecompile.runtime.commands.info import describe_bundle, format_bundle, format_host
from edgecompile.runtime.cpu.host import architecture
from tests.runtime.bundles import DummyBundle

PROBE_SOURCE = Path(edgecompile.runtime.__file__).parent / "native" / "probe" / "cpu_probe.c"


@pytest.fixture
def path(bundle: DummyBundle, compile_c: Callable[[str], bytes]) -> str:
    """A bundle with variants that this machine can run, and others that it can't."""
    arch = architecture(platform.machine())
    first = bundle.document["variants"][0]
    first.update(arch=arch, name="low", requires=[], glibc=None, rank=1)

    def variant(**changes: Any) -> None:
        bundle.document["variants"].append({**copy.deepcopy(first), **changes})

    variant(name="high", rank=2)
    variant(name="highest", rank=3, requires=["no-such-feature"])
    variant(name="newer", rank=4, glibc="99.0")
    variant(name="other", rank=5, arch="none")
    bundle.document["probes"] = {
        arch: "code/x86-64/libecprobe.so",
        "none": "code/x86-64/libecprobe.so",
    }
    bundle.files["code/x86-64/libecprobe.so"] = compile_c(f'#include "{PROBE_SOURCE}"\n')
    return bundle.write()


def verdicts(report: dict) -> dict[str, str]:
    return {item["name"]: item["verdict"] for item in report["variants"]}


def test_why_each_variant_is_or_is_not_chosen(path: str) -> None:
    report = describe_bundle(path)
    assert report["chosen"] == "high"
    found = verdicts(report)
    assert found["high"] == "runs here"
    assert found["low"] == "runs here, but high ranks higher"
    assert found["highest"] == "the CPU or the system lacks no-such-feature"
    assert found["newer"].startswith("needs glibc 99.0, this ")
    assert found["other"].startswith("is for none, this is ")
    text = "\n".join(format_bundle(report))
    assert "variant   high (chosen): runs here" in text
    assert "variant   low: runs here, but high ranks higher" in text


def test_a_variant_that_was_asked_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts(describe_bundle(path, "low"))["high"] == "runs here, but low was asked for"
    monkeypatch.setenv("EDGECOMPILE_VARIANT", "low")
    assert describe_bundle(path)["chosen"] == "low"
    report = describe_bundle(path, "highest")
    assert report["chosen"] is None and "highest can't run here" in report["problem"]
    assert verdicts(report)["high"] == "runs here"


def test_without_the_probe_nothing_is_said_of_this_machine(bundle: DummyBundle) -> None:
    report = describe_bundle(bundle.write(), probe=False)  # its probe is no library at all
    for key in ("host", "variants", "chosen", "problem", "device_bytes"):
        assert report[key] is None
    assert report["manifest"]["name"] == "tiny" and report["bytes"] > 0


def test_a_machine_in_words(path: str) -> None:
    host = describe_bundle(path)["host"]
    lines = "\n".join(format_host(host))
    assert f"{host['cpus']} CPUs usable" in lines and " GiB" in lines
    assert " ".join(host["features"]) in lines
    lines = "\n".join(format_host({**host, "features": None, "model": "", "memory_bytes": None}))
    assert f"give a BUNDLE for {host['arch']}" in lines and "GiB" not in lines
