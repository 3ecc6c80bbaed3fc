"""The commands inspect, verify and bench on a bundle."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import run
from tests.runtime.bundles import DummyBundle
from tests.runtime.policies import add_policy


def test_inspect_a_bundle(tiny_bundle: Path) -> None:
    result = run("inspect", str(tiny_bundle), "--hash", "--audit", "--json")
    document = json.loads(result.stdout)
    assert {"manifest", "manifest_sha256", "variants", "chosen", "bytes", "device_bytes"} <= set(
        document
    )
    assert document["target"] is None
    # The probe, and a runtime library and three programs for each variant.
    assert [verdict["ok"] for verdict in document["audit"]] == [True] * 9
    assert {verdict["target"] for verdict in document["audit"]} == {"the manifest"}
    packed = [v for v in document["audit"] if v["library"].startswith("bucket-")]
    assert len(packed) == 6 and all(v["vectorised"] for v in packed)
    assert "audit the libraries" in result.stderr
    plain = run("inspect", str(tiny_bundle), "--json")
    assert plain.stderr == "" and json.loads(plain.stdout) == {**document, "audit": None}
    assert "Audit" not in run("inspect", str(tiny_bundle)).stdout
    text = run("inspect", str(tiny_bundle), "--audit").stdout
    for part in ("Inputs and outputs", "input_ids", "batch × length", "Buckets", "Audit"):
        assert part in text
    assert "(chosen)" in text and "runs here" in text


@pytest.mark.parametrize(("ensemble", "count"), [(None, "2"), (0.01, "the mean")])
def test_inspect_a_policy(
    tiny_bundle: Path, tmp_path: Path, ensemble: float | None, count: str
) -> None:
    bundle = DummyBundle(tmp_path / "policy.ecb")
    probe = "code/x86-64/libecprobe.so"
    bundle.files[probe] = (tiny_bundle / probe).read_bytes()
    add_policy(bundle)
    if ensemble is not None:
        bundle.document["policy"].update(ensemble=ensemble, action_steps=1)
    text = run("inspect", bundle.write()).stdout
    names = "observation.state, observation.images.top"
    assert f"{names} → {count} of each chunk's actions" in text


def test_what_is_no_bundle_is_told(tiny_bundle: Path, files: Path) -> None:
    (files / "clone").mkdir()
    (files / "README.md").write_text("# text")
    for name, why in (("clone", "it has no manifest.json"), ("README.md", "it isn't a folder")):
        result = run("inspect", name)
        assert result.exit_code == 20
        assert result.stderr.startswith(f"error: {name}: is not a bundle: {why}")


def test_a_narrow_terminal_cuts_no_name(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    text = run("inspect", str(tiny_bundle)).stdout
    assert "…" not in text and max(map(len, text.splitlines())) <= 44
    sha256 = hashlib.sha256((tiny_bundle / "manifest.json").read_bytes()).hexdigest()
    assert sha256 in re.sub(r"\s+", "", text)


def test_inspect_for_a_target(tiny_bundle: Path, files: Path) -> None:
    def ask(target: str, *more: str) -> dict[str, Any]:
        result = run("inspect", str(tiny_bundle), "--target", target, "--json", *more)
        assert result.exit_code == 0, result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        assert document["host"] is None and document["chosen"] is None, "the probe was loaded"
        return document

    v4_lacks = "the CPU or the system lacks avx512f, avx512bw, avx512cd, avx512dq, avx512vl"
    assert ask("cpu-x86-64")["target"] == {
        "name": "cpu-x86-64",
        "ok": True,
        "problem": None,
        "chosen": {"x86-64": "x86-64-v3"},
        "variants": {"x86-64-v3": [], "x86-64-v4": [v4_lacks]},
    }
    assert ask("cpu-x86-64-v4")["target"]["chosen"] == {"x86-64": "x86-64-v4"}
    board = ask("raspberry-pi-5")["target"]
    assert not board["ok"] and board["problem"] == "no variant for its aarch64 devices"
    assert board["variants"]["x86-64-v3"] == ["is for x86-64, raspberry-pi-5 is not"]
    both = ask("cpu-any")["target"]
    assert (
        both["problem"] == "no variant for its aarch64 devices; no variant for its x86-64 devices"
    )

    shown = run("targets", "detect", "--output", "old.toml")
    assert shown.exit_code == 0, shown.stderr
    text = (files / "old.toml").read_text()
    text = re.sub(r"^glibc = .*$", 'glibc = "2.31"', text, flags=re.MULTILINE)
    text = re.sub(r"^python = .*$", 'python = "3.6"', text, flags=re.MULTILINE)
    (files / "old.toml").write_text(text)
    old = ask("./old.toml", "--audit")
    assert not old["target"]["ok"] and "Python 3.6 is older than 3.8" in old["target"]["problem"]
    assert "needs glibc 2.34, this is 2.31" in old["target"]["variants"]["x86-64-v3"]
    unfit = [v for v in old["audit"] if not v["ok"]]
    assert unfit and all("promises 2.31" in v["findings"][0]["what"] for v in unfit)
    table = run("inspect", str(tiny_bundle), "--target", "./old.toml", "--host", "--audit").stdout
    for part in ("runs here", "runs on old", "needs glibc 2.34", "unfit", "can't: no variant"):
        assert part in re.sub(r"\s+", " ", table), table


def test_verify_a_bundle(tiny_bundle: Path, tiny_model: Path, files: Path) -> None:
    result = run("verify", str(tiny_bundle), "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"bundle", "ok", "tolerance", "torch_loaded", "results", "not_executed"} <= set(document)
    assert document["ok"] and not document["torch_loaded"]
    assert {item["bucket"] for item in document["results"]} == {0, 1, 2}
    fresh = run("verify", str(tiny_bundle), "--model", str(tiny_model), "--report", "v.html")
    assert fresh.exit_code == 0, fresh.stderr
    assert "agrees:" in fresh.stdout and "random0" in fresh.stdout
    assert "random0" in (files / "v.html").read_text()


def test_verify_finds_a_wrong_bundle(tiny_bundle: Path, files: Path) -> None:
    """Golden vectors that are well-formed and hashed, but not what the model gives."""
    bundle = files / "wrong.ecb"
    shutil.copytree(tiny_bundle, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    name = manifest["golden"][0]["file"]
    with np.load(bundle / name) as arrays:
        changed = {
            key: array + np.float32(0.01) if key.startswith("out.") else array
            for key, array in arrays.items()
        }
    np.savez(bundle / name, **changed)
    data = (bundle / name).read_bytes()
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    result = run("verify", str(bundle), "--json")
    assert result.exit_code == 39, result.stderr
    document = json.loads(result.stdout)
    assert not document["ok"]
    failed = [item for item in document["results"] if not item["ok"]]
    assert {(item["bucket"], item["case"]) for item in failed} == {
        (manifest["golden"][0]["bucket"], manifest["golden"][0]["case"])
    }


def test_a_damaged_bundle_is_named(tiny_bundle: Path, files: Path) -> None:
    bundle = files / "damaged.ecb"
    shutil.copytree(tiny_bundle, bundle)
    weights = bundle / "weights.fp32"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    for command in (("verify",), ("inspect", "--hash")):
        result = run(*command, str(bundle))
        assert result.exit_code == 22, result.stderr
        assert "weights.fp32" in result.stderr and result.stdout == ""


def test_bench_a_bundle(tiny_bundle: Path, files: Path) -> None:
    (files / "few.txt").write_text("3\n9\n9\n")
    arguments = ["bench", str(tiny_bundle), "--lengths", "few.txt", "--threads", "1"]
    arguments += ["--rounds", "2", "--runs", "5", "--cold-runs", "1", "--report", "b.html"]
    result = run(*arguments, "--against", str(tiny_bundle), "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"contenders", "ratios", "by_length", "machine", "warnings"} <= set(document)
    assert list(document["contenders"]) == ["edgecompile", "tiny"]
    for contender in document["contenders"].values():
        assert 0 < contender["p50"] <= contender["p99"] and contender["bytes"] > 1e5
    assert str(files) not in json.dumps(document["command"])
    assert "<svg" in (files / "b.html").read_text()


def test_bench_names_what_needs_the_model(tiny_bundle: Path) -> None:
    result = run("bench", str(tiny_bundle), "--against", "eager")
    assert result.exit_code == 45, result.stderr
    assert "--model" in result.stderr
