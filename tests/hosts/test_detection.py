"""A machine as a target profile: this one by its probe, others by what they wrote."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from edgecompile.errors import TargetError
from edgecompile.hosts.detection import (
    describe_device,
    describe_here,
    detect_target,
    format_profile,
)
from edgecompile.runtime.cpu.host import describe_host
from edgecompile.targets.profile import load_target, load_variant

PI_5 = {
    "system": "Linux",
    "arch": "aarch64",
    "model": "Raspberry Pi 5 Model B Rev 1.0",
    "cpus": 4,
    "memory_bytes": 8 << 30,
    "features": ["aes", "asimd", "asimddp", "asimdhp", "asimdrdm", "atomics", "crc32", "fphp"],
    "glibc": "2.36",
    "versions": {"python": "3.11.2", "numpy": "1.24.2"},
}


def device(**changes: Any) -> dict[str, Any]:
    return {**PI_5, **changes}


def test_this_machine() -> None:
    host = describe_here()
    profile = detect_target(host)
    runtime = describe_host()
    assert profile.name == "this-machine" and profile.cores == runtime.cpus
    assert abs(profile.memory_gib * 2**30 - runtime.memory) < 0.01 * 2**30
    assert runtime.glibc is not None
    assert profile.glibc == "{}.{}".format(*runtime.glibc)
    assert profile.python == ".".join(platform.python_version().split(".")[:2])
    assert profile.bandwidth_gbs is None and profile.peak_gflops == ()
    (variant,) = profile.variants
    assert set(variant.requires) <= set(host["features"])
    assert set(dict(profile.sources)) == {"cores", "memory_gib", "glibc", "python", "features"}


def test_the_best_variant_is_named() -> None:
    profile = detect_target(PI_5, "pi")
    assert (profile.cores, profile.memory_gib, profile.glibc) == (4, 8.0, "2.36")
    assert profile.python == "3.11"
    assert profile.variants == (load_variant("aarch64-dotprod"),)
    newer = detect_target(device(features=[*device()["features"], "i8mm", "bf16"]))
    assert newer.variants == (load_variant("aarch64-i8mm"),)
    # What variants can't require isn't listed.
    assert "aes" not in profile.features_of("aarch64")
    old = detect_target(device(features=["asimd"]))
    assert [v.name for v in old.variants] == ["aarch64-neon"]


def test_the_file_is_a_profile(tmp_path: Path) -> None:
    for host in (describe_here(), PI_5, device(model='odd "name"\n\x7f\\ \ud800')):
        profile = detect_target(host, "board")
        (tmp_path / "board.toml").write_text(format_profile(profile), encoding="utf-8")
        assert load_target(tmp_path / "board.toml") == profile


@pytest.mark.parametrize("name", ["raspberry-pi-5", "cpu-any", "graviton3", "cpu-x86-64"])
def test_any_profile_can_be_written(tmp_path: Path, name: str) -> None:
    profile = load_target(name)
    (tmp_path / f"{name}.toml").write_text(format_profile(profile), encoding="utf-8")
    assert load_target(tmp_path / f"{name}.toml") == profile


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arch": "riscv64"}, "nothing can be built for riscv64"),
        ({"glibc": None}, "isn't glibc"),
        ({"features": []}, "aarch64-neon requires also asimd"),
        ({"arch": "x86-64", "features": ["sse3"]}, "x86-64-v2 requires also cx16"),
        ({"memory_bytes": None}, "memory"),
        ({"cpus": 0}, "cores: expected a whole number from 1"),
        ({"glibc": "latest"}, "glibc: expected"),
        ({"versions": {}}, "python: expected"),
    ],
)
def test_machines_that_nothing_can_be_built_for(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(TargetError) as caught:
        detect_target(device(**changes))
    assert problem in str(caught.value)


def test_a_device_describes_itself(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"host": PI_5, "manifest": {}}))
    assert detect_target(describe_device(path)) == detect_target(PI_5)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "it has no object host"),
        ('{"host": []}', "it has no object host"),
        ('{"host": {"arch": "aarch64"}}', "cpus is missing, memory_bytes is missing"),
        (json.dumps({"host": device(cpus="four")}), "cpus is 'four'"),
        (json.dumps({"host": device(features=None)}), "nothing asked the CPU"),
        ("[]", "device.json"),
        ("{", "device.json"),
    ],
)
def test_files_that_describe_no_machine(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(content)
    with pytest.raises(TargetError) as caught:
        describe_device(path)
    assert problem in caught.value.message
    assert "python3 BUNDLE info --host --json" in str(caught.value.hint)
