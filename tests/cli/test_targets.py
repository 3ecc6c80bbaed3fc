"""The command targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import run


def test_targets() -> None:
    listed = json.loads(run("targets", "list", "--json").stdout)["targets"]
    assert "cpu-x86-64" in [target["name"] for target in listed]
    assert all(set(t) == {"name", "kind", "variants", "description"} for t in listed)
    shown = json.loads(run("targets", "show", "cpu-x86-64", "--json").stdout)
    assert [v["name"] for v in shown["variants"]] == ["x86-64-v3", "x86-64-v4"]
    assert "x86-64-v4" in run("targets", "show", "cpu-x86-64").stdout


def test_targets_check_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = json.loads(run("targets", "check", "cpu-x86-64", "--json").stdout)
    assert set(checked) == {"target", "ok", "compilers", "runs_here", "problems"}
    assert checked["ok"] and "x86-64" in checked["compilers"]
    from edgecompile.toolchain.compilers import find_toolchain

    monkeypatch.setenv("EDGECOMPILE_CXX", "/nonexistent/g++")
    find_toolchain.cache_clear()
    result = run("targets", "check", "cpu-x86-64", "--json")
    find_toolchain.cache_clear()
    assert result.exit_code == 35
    assert json.loads(result.stdout)["ok"] is False
    assert "/nonexistent/g++" in result.stderr


def test_targets_detect(files: Path) -> None:
    result = run("targets", "detect", "--json")
    assert result.exit_code == 0, result.stderr
    profile = json.loads(result.stdout)
    assert profile["name"] == "this-machine" and profile["bandwidth_gbs"] is None
    assert run("targets", "detect", "-o", "board.toml", "--quiet").exit_code == 0
    printed = run("targets", "detect", "--toml", "--name", "board").stdout
    assert printed == (files / "board.toml").read_text()
    checked = json.loads(run("targets", "check", "board.toml", "--json").stdout)
    assert checked["ok"] and checked["runs_here"] == [v["name"] for v in profile["variants"]]
    assert "bandwidth not known" in run("targets", "show", "board.toml").stdout
    for wrong in (["-o", "board"], ["-o", "a.toml", "--name", "b"], ["--toml", "--json"]):
        assert run("targets", "detect", *wrong).exit_code == 2


def test_targets_detect_from_what_a_device_said(files: Path) -> None:
    host = {
        **{"arch": "aarch64", "model": "Board", "cpus": 4, "memory_bytes": 4 << 30},
        **{"features": ["asimd"], "glibc": "2.36", "versions": {"python": "3.11.2"}},
    }
    (files / "device.json").write_text(json.dumps({"host": host}))
    result = run("targets", "detect", "--from", "device.json", "--json")
    assert result.exit_code == 0, result.stderr
    assert [v["name"] for v in json.loads(result.stdout)["variants"]] == ["aarch64-neon"]
    (files / "device.json").write_text("{}")
    result = run("targets", "detect", "--from", "device.json")
    assert result.exit_code == 31 and "python3 BUNDLE info --host --json" in result.stderr
