"""finish: an engine built, tested and stamped once, and built anew where it no longer serves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_gpu.rig import REPOSITORY, Rig
from tests.finish.outcome import REPORT, WHOLE, check_schema, check_served, serve


def test_a_bundle_is_finished_once(rig: Rig) -> None:
    first = rig.finish().report
    check_schema(first, REPORT)
    assert first["state"] == "finished" and first["profile_of"] == [0, 1]
    assert [item["outcome"] for item in first["attempts"]] == ["built"]
    assert first["selftest"]["modes"] == ["planned", "default", "reduce-overhead"]
    assert len(first["selftest"]["cases"]) == 6 and first["notes"] == []
    assert rig.names() == WHOLE
    second = rig.finish().report
    check_schema(second, REPORT)
    assert second["state"] == "already finished" and second["attempts"] == []
    assert len(rig.calls("build_serialized_network")) == 1
    for key in ("engine", "built", "selftest", "key"):
        assert second[key] == first[key]
    check_served(rig, [1, 32, 33, 64])


def test_what_people_are_told(rig: Rig) -> None:
    command = [item for item in rig.start().args if item != "--json"]  # type: ignore[union-attr]
    done = subprocess.run(command, env=rig.environment, capture_output=True, text=True)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("finished: jetson-orin for NVIDIA Jetson Orin Nano") or lines[
        0
    ].startswith("already finished: jetson-orin for NVIDIA Jetson Orin Nano")
    assert lines[-1] == "golden vectors: 6 cases ok, modes planned, default, reduce-overhead"


def test_an_unfinished_bundle_says_how_to_finish_it(rig: Rig) -> None:
    rig.bundle.write()
    done = serve(rig, [3])
    assert done.returncode != 0
    assert "UnfinishedBundleError" in done.stderr
    assert "python -m edgecompile.runtime finish" in done.stderr


def test_the_profiles_are_those_of_the_recipe(rig: Rig) -> None:
    assert rig.finish_before().code == 0
    assert rig.calls("set_shape")[0] == "set_shape input_ids (1, 1) (1, 16) (2, 32)"
    assert rig.calls("set_shape")[3] == "set_shape attention_mask (1, 64) (1, 64) (2, 64)"
    assert rig.calls("set_memory_pool_limit") == [f"set_memory_pool_limit WORKSPACE {1 << 30}"]


def test_options_of_the_build(rig: Rig) -> None:
    report = rig.finish("--workspace", "100000000", "--level", "5").report
    assert report["built"]["workspace_bytes"] == 100_000_000
    assert report["built"]["optimization_level"] == 5
    first = report["engine"]["path"]
    # Without options, whatever there is serves; with others it is built anew.
    assert rig.finish().report["state"] == "already finished"
    assert rig.finish("--level", "5", "--workspace", "100000000").report["attempts"] == []
    again = rig.finish("--level", "2")
    assert "it was finished with other options" in again.stderr
    assert again.report["built"]["optimization_level"] == 2
    assert rig.names() == WHOLE and Path(first).exists() == (
        again.report["engine"]["path"] == first
    )


def test_force_builds_anew_from_the_timing_cache(rig: Rig) -> None:
    assert rig.finish_before().report["built"]["timing_cache"] == "new"
    assert rig.calls("measured") == ["measured 12 of 12"]
    assert rig.finish("--force").report["built"]["timing_cache"] == "used"
    assert rig.calls("measured")[1] == "measured 0 of 12"


def test_a_timing_cache_serves_other_bundles_of_the_device(rig: Rig) -> None:
    assert rig.finish_before().code == 0
    rig.bundle.recipe["builder"]["optimization_level"] = 4
    rig.bundle.write()
    report = rig.finish().report
    assert report["built"]["timing_cache"] == "used" and report["others"]["count"] == 1


def test_a_timing_cache_that_is_damaged(rig: Rig) -> None:
    assert rig.finish_before().code == 0
    (cache,) = (rig.cache / "timing").iterdir()
    cache.write_bytes(b"\0\1\2")
    report = rig.finish("--force").report
    assert report["built"]["timing_cache"].endswith("started empty")


def test_a_damaged_engine_is_built_anew(rig: Rig) -> None:
    path = Path(rig.finish_before().report["engine"]["path"])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = rig.finish()
    assert again.report["state"] == "finished" and "is damaged" in again.stderr
    assert rig.names() == WHOLE


def test_an_engine_that_tensorrt_refuses_now_is_built_anew(rig: Rig) -> None:
    """Another build of the same version, say: nothing that can be asked for tells them apart."""
    assert rig.finish_before().report["state"] == "finished"
    refusing = {"FAKE_TRT_FAIL": "deserialize_cuda_engine:*"}
    rig.environment.update(refusing)
    assert "finish BUNDLE --force" in serve(rig, [3]).stderr
    del rig.environment["FAKE_TRT_FAIL"]
    (rig.folder / "counts").mkdir()
    counts = {"FAKE_TRT_COUNTS": str(rig.folder / "counts")}
    # Before and after the lock is taken; the new one is accepted.
    fail = "deserialize_cuda_engine:1,deserialize_cuda_engine:2"
    again = rig.finish(FAKE_TRT_FAIL=fail, **counts)
    assert again.report["state"] == "finished" and again.report["attempts"] != []
    assert "no finished engine: " in again.stderr
    assert "doesn't accept it: The engine plan file is not compatible" in again.stderr
    assert rig.names() == WHOLE and rig.finish().report["state"] == "already finished"
    check_served(rig, [3], ("default",))


@pytest.mark.slow
def test_an_untested_engine_that_tensorrt_refuses_is_built_anew(rig: Rig) -> None:
    assert rig.finish(FAKE_TRT_FAIL="create_execution_context:1").code == 62  # for want of memory
    assert rig.names() == ["built.json", "engine"]
    (rig.folder / "counts").mkdir()
    again = rig.finish(
        FAKE_TRT_FAIL="deserialize_cuda_engine:1", FAKE_TRT_COUNTS=str(rig.folder / "counts")
    )
    assert again.report["state"] == "finished" and rig.names() == WHOLE
    assert len(rig.calls("build_serialized_network")) == 2


@pytest.mark.parametrize(
    ("how", "state"),
    [("segv", "finished"), pytest.param("kill", "already finished", marks=pytest.mark.slow)],
)
def test_an_engine_that_ends_whoever_opens_it(rig: Rig, how: str, state: str) -> None:
    assert rig.finish_before().code == 0
    (rig.folder / "counts").mkdir()
    fail = f"deserialize_cuda_engine:1:{how},deserialize_cuda_engine:2:{how}"
    again = rig.finish(FAKE_TRT_FAIL=fail, FAKE_TRT_COUNTS=str(rig.folder / "counts"))
    assert again.report["state"] == state


def test_an_engine_exchanged_for_another_bundle_s(rig: Rig) -> None:
    """By the script that breaks `finish` on a device: refused, but for a stamp that is forged to fit."""
    rig.bundle.write()
    script, results = REPOSITORY / "benchmarks/engines/failures.py", rig.folder / "results.jsonl"
    command = [sys.executable, str(script), str(rig.bundle.folder), str(results)]
    done = subprocess.run(
        [*command, "engine_of_another"], env=rig.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    exchanged, forged = (json.loads(line) for line in results.read_text().splitlines())
    assert "must have" in exchanged["seen"][-1]["words"] and forged["seen"]["code"] == 0
