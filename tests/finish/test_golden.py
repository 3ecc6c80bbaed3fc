"""finish holds the engine against the golden vectors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_gpu.bundles import GpuBundle, run_eager
from tests.fake_gpu.rig import REPOSITORY, Rig
from tests.finish.outcome import WHOLE, check_served, serve
from tests.runtime.golden_files import write_case


def spoil(bundle: GpuBundle, bucket: int, by: float) -> None:
    """Moves what is expected of a bucket away from what the model gives."""
    inputs, outputs = run_eager({0: 7, 1: 40}[bucket], bucket)
    outputs["states"] = outputs["states"] + np.float32(by)
    bundle.files[f"golden/{bucket}-hint.npz"] = write_case(inputs, outputs)


def test_an_engine_that_is_wrong_isn_t_served(rig: Rig) -> None:
    spoil(rig.bundle, 0, 0.01)
    spoil(rig.bundle, 1, 1.0)
    done = rig.finish()
    assert done.code == 27
    error = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "bucket 1 (pad batch 1..2, length 33..64), case hint, mode " in error
    assert "the largest error is 1, " in error and "times its limit of " in error
    assert "nothing serves this bundle" in error
    assert "bucket 0 " in done.stderr  # all of them are told
    assert rig.names() == []
    assert "UnfinishedBundleError" in serve(rig, [3]).stderr
    # What was measured would lead to the same engine.
    assert list((rig.cache / "timing").iterdir()) == []


def test_rows_that_change_with_those_beside_them_aren_t_served(rig: Rig) -> None:
    rig.bundle.add_rows(0)
    rig.bundle.document["plan"] = {"operators": ["Gather", "Softmax", "GridSample"]}
    done = rig.finish(FAKE_TRT_MIXES_ROWS="1")
    assert done.code == 27
    assert "case equal-rows" in done.stderr and "case rows-alone" in done.stderr
    assert "equal rows of a batch give different answers, which eager doesn't" in done.stderr
    assert "the likeliest operators of this model are GridSample, Softmax" in done.stderr
    assert rig.names() == []
    found = rig.finish().report["selftest"]["cases"]
    assert {"equal-rows", "rows-alone", "rows"} <= {item["case"] for item in found}


def test_the_recipe_s_tolerance_judges_the_engine(rig: Rig) -> None:
    """The manifest's is that of the variants for the CPU, whose precision may be another."""
    spoil(rig.bundle, 0, 0.01)
    rig.bundle.recipe.update(tolerance={"atol": 1e-5, "rtol": 0.1}, min_cosine=None)
    assert rig.bundle.document["tolerance"]["rtol"] < 0.001
    assert rig.finish().report["state"] == "finished"
    command = [sys.executable, "-m", "edgecompile.runtime", "selftest", str(rig.bundle.folder)]
    done = subprocess.run(
        [*command, "--json"],
        env=rig.environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tolerance"] == {"atol": 1e-5, "rtol": 0.1} and report["min_cosine"] is None
    assert max(item["max_abs_error"] for item in report["cases"]) == pytest.approx(0.01, rel=0.01)


def test_the_least_cosine_counts(rig: Rig) -> None:
    spoil(rig.bundle, 1, 0.1)
    rig.bundle.recipe.update(tolerance={"atol": 1e-5, "rtol": 0.5}, min_cosine=0.9999)
    done = rig.finish()
    assert done.code == 27
    assert "case hint, mode " in done.stderr and "states has the cosine 0.99" in done.stderr
    assert "at least 0.9999 is asked for" in done.stderr
    rig.bundle.recipe["min_cosine"] = 0.9
    rig.bundle.write()
    assert rig.finish().report["state"] == "finished"


def test_the_engine_from_before_still_serves(rig: Rig) -> None:
    before = rig.finish_before().report
    good = (rig.bundle.folder / "golden/1-hint.npz").read_bytes()
    spoil(rig.bundle, 1, 1.0)
    rig.bundle.write()
    done = rig.finish("--level", "2")
    assert done.code == 27 and "the one from before still serves" in done.stderr
    assert rig.names() == WHOLE
    rig.bundle.files["golden/1-hint.npz"] = good
    rig.bundle.write()
    after = rig.finish().report
    assert after["state"] == "already finished" and after["engine"] == before["engine"]
    check_served(rig, [3], ("default",))


def test_the_same_engine_that_fails_now(rig: Rig) -> None:
    assert rig.finish_before().code == 0
    spoil(rig.bundle, 1, 1.0)
    rig.bundle.write()
    done = rig.finish("--force")
    assert done.code == 27 and "nothing serves this bundle" in done.stderr
    assert "UnfinishedBundleError" in serve(rig, [3]).stderr


def test_a_bucket_without_a_vector(rig: Rig) -> None:
    rig.bundle.document["golden"].pop()
    done = rig.finish()
    assert done.code == 27 and "buckets without a vector: 1" in done.stderr


def test_padding_that_wasn_t_verified_isn_t_tested(rig: Rig) -> None:
    rig.bundle.recipe["padding"] = False
    done = rig.finish()
    assert done.report["selftest"]["modes"] == ["planned", "default"]
    assert 'not tested: the mode "reduce-overhead" pads' in done.stderr


@pytest.mark.slow
def test_one_command_checks_a_bundle_for_tensorrt(rig: Rig) -> None:
    """scripts/gpu-check: every mode, and an exit code that tells a wrong answer."""
    output = rig.folder / "checked"

    def check() -> tuple[int, dict[str, Any]]:
        rig.bundle.write()
        command = [sys.executable, str(REPOSITORY / "scripts" / "gpu-check"), "--installed"]
        command += ["--seconds", "0.05", "--output", str(output), str(rig.bundle.folder)]
        done = subprocess.run(command, env=rig.environment, capture_output=True, text=True)
        (row,) = json.loads((output / "gpu-check.json").read_text())
        return done.returncode, row

    code, row = check()
    assert code == 0 and row["answer"] == "ok" and row["failures"] == [], row
    assert row["cases"] == 6 and row["worst / limit"] < 1 and row["precision"] == "fp16"
    assert all(row[f"{mode} ms"] > 0 for mode in ("planned", "default", "reduce-overhead"))
    assert (output / "tiny-calibration.json").exists()
    spoil(rig.bundle, 1, 1.0)
    code, row = check()
    assert code == 1 and row["answer"] == "FAILED"
    assert [text.partition(":")[0] for text in row["failures"]] == [
        f"tiny-selftest-{mode}" for mode in ("planned", "default", "reduce-overhead")
    ]


EAGER = """
import torch
from torch import nn

from tests.fake_gpu.bundles import TABLE


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.from_numpy(TABLE.copy()) + BY)

    def forward(self, input_ids, attention_mask):
        states = self.table[input_ids] * attention_mask[..., None].to(self.table.dtype)
        total = states.sum(1)
        return {"embedding": torch.cat([total, total], 1), "states": states}


def make():
    axes = {0: "batch", 1: "length"}
    return {
        "module": Tiny(),
        "inputs": {name: torch.ones(1, 9, dtype=torch.int64) for name in ("input_ids", "attention_mask")},
        "axes": {"input_ids": axes, "attention_mask": axes},
        "limits": {"length": (1, 64)},
    }
"""


@pytest.mark.slow
def test_the_same_command_compares_with_eager(rig: Rig) -> None:
    """On the CPU here: the model's own weights, then others."""
    pytest.importorskip("torch")
    output = rig.folder / "checked"
    rig.bundle.recipe["tolerance"] = {"atol": 1e-5, "rtol": 0.02}  # as of fp16

    def check(by: float) -> tuple[int, dict[str, Any]]:
        rig.bundle.write()
        factory = rig.folder / "tiny.py"
        factory.write_text(EAGER.replace("BY", str(by)))
        command = [sys.executable, str(REPOSITORY / "scripts" / "gpu-check"), "--installed"]
        command += ["--seconds", "0.05", "--output", str(output), "--eager", f"{factory}:make"]
        done = subprocess.run(
            [*command, str(rig.bundle.folder)],
            env=rig.environment,
            cwd=rig.folder,
            capture_output=True,
            text=True,
        )
        assert (output / "gpu-check.json").exists(), done.stderr
        (row,) = json.loads((output / "gpu-check.json").read_text())
        return done.returncode, row

    code, row = check(0.0)
    assert code == 0 and row["failures"] == []
    assert row["to eager fp32 / limit"] < 1 and 0 < row["to eager fp16 / limit"] < 1
    code, row = check(1.0)
    assert code == 1 and row["answer"] == "FAILED" and row["to eager fp32 / limit"] > 1
    assert any("times the limit away from eager in fp32" in text for text in row["failures"])


def test_a_check_without_a_case_fails(tmp_path: Path) -> None:
    bundle = tmp_path / "refusing.ecb"
    bundle.mkdir()
    (bundle / "__main__.py").write_text("raise SystemExit(17)\n")
    (bundle / "manifest.json").write_text(
        '{"golden": [], "variants": [], "inputs": [], "outputs": [], "axes": {}, "length_axis": null}'
    )
    command = [sys.executable, str(REPOSITORY / "scripts" / "gpu-check"), "--output"]
    done = subprocess.run(
        [*command, str(tmp_path / "out"), str(bundle)], capture_output=True, text=True
    )
    (row,) = json.loads((tmp_path / "out" / "gpu-check.json").read_text())
    assert done.returncode == 1 and row["failures"] == ["no case ran: every mode was refused"]
