"""finish: an engine built, tested and stamped, on FAKES of TensorRT and CUDA (tests/fake_gpu)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.golden import write_case
from tests.fake_gpu.bundles import FOLDER, TABLE, GpuBundle, run_eager
from tests.fake_gpu.rig import REPOSITORY, Rig, wait_for_end, wait_for_pause

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

MIB = 1 << 20
WHOLE = ["engine", "stamp.json"]
RUN = """
import json, sys
import numpy as np
from edgecompile.runtime import open_bundle
with open_bundle(sys.argv[1], mode=sys.argv[2]) as model:
    for length in json.loads(sys.argv[3]):
        ids = np.arange(length, dtype=np.int64)[None] % 100
        found = model.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
        print(json.dumps(found["embedding"].tolist()))
"""


@pytest.fixture
def rig(tmp_path: Path, fake_cudart_path: Path) -> Rig:
    """A fake device with nothing in its cache."""
    return Rig(tmp_path, fake_cudart_path)


def serve(rig: Rig, lengths: list[int], mode: str = "default") -> subprocess.CompletedProcess[str]:
    """Opens the bundle in a process of its own and runs it at some lengths."""
    return subprocess.run(
        [sys.executable, "-c", RUN, str(rig.bundle.folder), mode, json.dumps(lengths)],
        env=rig.environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


def check_served(
    rig: Rig, lengths: list[int], modes: tuple[str, ...] = ("planned", "default", "reduce-overhead")
) -> None:
    """The engine that was finished gives what eager gives."""
    for mode in modes:
        done = serve(rig, lengths, mode)
        assert done.returncode == 0, done.stderr
        for length, line in zip(lengths, done.stdout.splitlines(), strict=True):
            total = TABLE[np.arange(length) % 100].sum(axis=0)
            np.testing.assert_allclose(json.loads(line)[0], [*total, *total], rtol=1e-3, atol=1e-4)


# --- What comes out
REPORT: dict[str, Any] = {
    "ok": bool,
    "state": str,
    "bundle": str,
    "name": str,
    "manifest_sha256": str,
    "variant": str,
    "device": {
        "model": str,
        "l4t": str,
        "name": str,
        "compute_capability": str,
        "sm_count": int,
        "integrated": bool,
        "driver": str,
        "runtime": str,
        "tensorrt": str,
        "memory_bytes": int,
    },
    "key": str,
    "engine": {"path": str, "size": int, "sha256": str},
    "profile_of": [int],
    "built": {
        "workspace_bytes": int,
        "optimization_level": int,
        "profiles": int,
        "seconds": float,
        "attempts": int,
        "timing_cache": str,
    },
    "selftest": {
        "ok": bool,
        "cases": [
            {
                "bucket": int,
                "case": str,
                "mode": str,
                "ok": bool,
                "max_abs_error": float,
                "scale": float,
                "limit": float,
                "cosine": float,
                "ms": float,
            }
        ],
        "modes": [str],
    },
    "attempts": [
        {
            "settings": str,
            "workspace_bytes": int,
            "optimization_level": int,
            "profiles": int,
            "outcome": str,
            "seconds": float,
        }
    ],
    "notes": [str],
    "others": {"count": int, "bytes": int},
    "seconds": float,
}


def check_schema(value: Any, schema: Any, where: str = "report") -> None:
    """The very keys, and values of the very types."""
    if isinstance(schema, dict):
        assert value.keys() == schema.keys(), where
        for key, item in schema.items():
            check_schema(value[key], item, f"{where}.{key}")
    elif isinstance(schema, list):
        for index, item in enumerate(value):
            check_schema(item, schema[0], f"{where}[{index}]")
    else:
        assert type(value) is schema, f"{where} is {value!r}"


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
    assert rig.finish().code == 0
    assert rig.calls("set_shape")[0] == "set_shape input_ids (1, 1) (1, 16) (2, 32)"
    assert rig.calls("set_shape")[3] == "set_shape attention_mask (1, 64) (1, 64) (2, 64)"
    assert rig.calls("set_memory_pool_limit") == [f"set_memory_pool_limit WORKSPACE {1024 * MIB}"]


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
    assert rig.finish().report["built"]["timing_cache"] == "new"
    assert rig.calls("measured") == ["measured 12 of 12"]
    assert rig.finish("--force").report["built"]["timing_cache"] == "used"
    assert rig.calls("measured")[1] == "measured 0 of 12"


def test_a_timing_cache_serves_other_bundles_of_the_device(rig: Rig) -> None:
    assert rig.finish().code == 0
    rig.bundle.recipe["builder"]["optimization_level"] = 4
    rig.bundle.write()
    report = rig.finish().report
    assert report["built"]["timing_cache"] == "used" and report["others"]["count"] == 1


def test_a_timing_cache_that_is_damaged(rig: Rig) -> None:
    assert rig.finish().code == 0
    (cache,) = (rig.cache / "timing").iterdir()
    cache.write_bytes(b"\0\1\2")
    report = rig.finish("--force").report
    assert report["built"]["timing_cache"].endswith("begun anew")


def test_a_damaged_engine_is_built_anew(rig: Rig) -> None:
    path = Path(rig.finish().report["engine"]["path"])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = rig.finish()
    assert again.report["state"] == "finished" and "is damaged" in again.stderr
    assert rig.names() == WHOLE


def test_an_engine_that_tensorrt_refuses_now_is_built_anew(rig: Rig) -> None:
    """Another build of the same version, say: nothing that can be asked for tells them apart."""
    assert rig.finish().report["state"] == "finished"
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


def test_an_untested_engine_that_tensorrt_refuses_is_built_anew(rig: Rig) -> None:
    assert rig.finish(FAKE_TRT_FAIL="execute_async_v3:1").code == 29
    assert rig.names() == ["built.json", "engine"]
    (rig.folder / "counts").mkdir()
    again = rig.finish(
        FAKE_TRT_FAIL="deserialize_cuda_engine:1", FAKE_TRT_COUNTS=str(rig.folder / "counts")
    )
    assert again.report["state"] == "finished" and rig.names() == WHOLE
    assert len(rig.calls("build_serialized_network")) == 2


@pytest.mark.parametrize(("how", "state"), [("segv", "finished"), ("kill", "already finished")])
def test_an_engine_that_ends_whoever_opens_it(rig: Rig, how: str, state: str) -> None:
    assert rig.finish().code == 0
    (rig.folder / "counts").mkdir()
    fail = f"deserialize_cuda_engine:1:{how},deserialize_cuda_engine:2:{how}"
    again = rig.finish(FAKE_TRT_FAIL=fail, FAKE_TRT_COUNTS=str(rig.folder / "counts"))
    assert again.report["state"] == state


# --- Another device, or one that changed
@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"FAKE_TRT_VERSION": "10.7.0"}, "tensorrt was 10.3.0, is 10.7.0"),
        (
            {"FAKE_CUDART_DEVICE": "name=Orin;cc=8.7;sm=8;memory=8589934592;driver=12080"},
            "driver was 12.6, is 12.8",
        ),
        (
            {"FAKE_CUDART_DEVICE": "name=Orin;cc=8.7;sm=16;memory=8589934592;integrated=1"},
            "sm_count was 8, is 16",
        ),
    ],
)
def test_a_change_is_noticed(rig: Rig, environment: dict[str, str], text: str) -> None:
    before = rig.finish().report
    changed = rig.finish(**environment)
    assert changed.report["state"] == "finished" and text in changed.stderr
    assert any(text in note for note in changed.report["notes"])
    assert changed.report["key"] != before["key"]
    assert changed.report["others"]["count"] == 1 and changed.report["others"]["bytes"] > 0
    # The other one is still there for the day when the change is undone.
    assert rig.finish().report["state"] == "already finished"


def test_another_libcudart_in_the_process_is_no_change(rig: Rig) -> None:
    """An application may have loaded one of its own, before it opens a bundle or finishes one."""
    before = rig.finish().report
    rig.environment["FAKE_CUDART_DEVICE"] += ";runtime=13000"
    check_served(rig, [3, 40], ("default",))
    again = rig.finish().report
    assert again["state"] == "already finished" and again["engine"] == before["engine"]
    assert (before["device"]["runtime"], again["device"]["runtime"]) == ("12.6", "13.0")


def test_another_module(rig: Rig) -> None:
    assert rig.finish().code == 0
    (rig.root / "proc/device-tree/model").write_text("NVIDIA Jetson Orin NX\0")
    changed = rig.finish()
    assert "model was NVIDIA Jetson Orin Nano" in changed.stderr
    assert "the recipe was made for jetson-orin-nano" in changed.stderr
    assert changed.report["state"] == "finished"


@pytest.mark.parametrize(
    ("version", "release", "texts"),
    [
        ("8.5.2", None, ["TensorRT 8.5.2 is installed", "10.3 and later"]),
        ("11.4.0", None, ["TensorRT 11.4.0 is installed", "below 11.0"]),
        ("10.16.0", "# R38 (release), REVISION: 2.0", ["JetPack 7 (L4T 38.2.0)", "JetPack 6.2"]),
    ],
)
def test_a_bundle_for_another_jetpack(
    rig: Rig, version: str, release: str | None, texts: list[str]
) -> None:
    if release is not None:
        (rig.root / "etc/nv_tegra_release").write_text(release)
    done = rig.finish("--force", FAKE_TRT_VERSION=version)
    assert done.code == 61
    for text in texts:
        assert text in done.stderr
    assert rig.engines == []


def test_another_gpu_is_refused_unless_forced(rig: Rig) -> None:
    device = "name=A100;cc=8.0;sm=8;memory=8589934592"
    done = rig.finish(FAKE_CUDART_DEVICE=device)
    assert done.code == 61 and "compute capability 8.0, the recipe is for 8.7" in done.stderr
    assert rig.finish("--force", FAKE_CUDART_DEVICE=device).report["state"] == "finished"


def test_no_tensorrt(rig: Rig) -> None:
    done = rig.finish(PYTHONPATH=str(REPOSITORY))
    assert done.code == 19 and "No module named 'tensorrt'" in done.stderr
    assert "hint: on a Jetson it comes with JetPack: sudo apt install" in done.stderr


def test_no_cuda(rig: Rig) -> None:
    done = rig.finish(EDGECOMPILE_CUDART="/nowhere/libcudart.so")
    assert done.code == 19 and "/nowhere/libcudart.so" in done.stderr


def test_a_bundle_without_such_a_variant(rig: Rig) -> None:
    rig.bundle.document["variants"][0]["arch"] = "riscv64"
    done = rig.finish()
    assert done.code == 23
    assert "no TensorRT variant for" in done.stderr
    assert "jetson-orin (backend tensorrt, for riscv64)" in done.stderr
    assert rig.finish("--variant", "x").code == 23


@pytest.mark.parametrize("name", ["model.onnx", "weights.fp16", "recipe.json"])
def test_damaged_files_of_the_bundle(rig: Rig, name: str) -> None:
    rig.bundle.write()
    path = rig.bundle.folder / FOLDER / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = rig.finish()
    assert done.code == 22 and name in done.stderr and "[file-hash]" in done.stderr
    assert rig.calls("build_serialized_network") == []


# --- Memory and disk
def with_buckets(rig: Rig) -> None:
    """Four buckets in all, so that profiles can be merged."""
    rig.bundle.add_bucket(65, 80)
    rig.bundle.add_bucket(81, 96)


@pytest.mark.parametrize("how", ["log", "kill"])
def test_fewer_profiles_where_memory_runs_out(rig: Rig, how: str) -> None:
    with_buckets(rig)
    # Enough for the least workspace, the low level and two profiles, as the fake counts.
    done = rig.finish(FAKE_TRT_MEMORY=str(230 * MIB), FAKE_TRT_OOM=how)
    report = done.report
    check_schema(report, REPORT)
    assert [
        (item["workspace_bytes"] // MIB, item["optimization_level"], item["profiles"])
        for item in report["attempts"]
    ] == [(1024, 3, 4), (256, 3, 4), (64, 1, 4), (64, 1, 2)]
    word = "OutOfMemory" if how == "log" else "SIGKILL, as the system does where memory runs out"
    assert all(word in item["outcome"] for item in report["attempts"][:-1])
    assert report["built"]["attempts"] == 4 and report["profile_of"] == [0, 0, 1, 1]
    assert "buckets share profiles: 0+1, 2+3" in report["notes"]
    assert done.stderr.count("trying again: workspace") == 3
    assert len(report["selftest"]["cases"]) == 12
    assert rig.names() == WHOLE
    check_served(rig, [1, 32, 33, 64, 65, 80, 96])


def test_memory_that_does_for_nothing(rig: Rig) -> None:
    done = rig.finish(FAKE_TRT_MEMORY=str(150 * MIB))
    assert done.code == 62
    assert "workspace 1024 MiB, optimization level 3, 2 profiles: " in done.stderr
    assert "workspace 64 MiB, optimization level 1, 1 profile: " in done.stderr
    assert "hint: end other programs, add swap space" in done.stderr
    assert rig.names() == []
    assert rig.finish().report["state"] == "finished"


@pytest.mark.parametrize("how", ["kill", "segv", "abort"])
def test_a_builder_that_dies_once(rig: Rig, how: str) -> None:
    (rig.folder / "counts").mkdir()
    done = rig.finish(
        FAKE_TRT_FAIL=f"build_serialized_network:1:{how}",
        FAKE_TRT_COUNTS=str(rig.folder / "counts"),
    )
    assert [item["workspace_bytes"] // MIB for item in done.report["attempts"]] == [1024, 256]
    signal_name = {"kill": "SIGKILL", "segv": "SIGSEGV", "abort": "SIGABRT"}[how]
    assert f"was ended by {signal_name}" in done.stderr


def test_workspace_is_capped_by_what_is_free(rig: Rig) -> None:
    (rig.root / "proc/meminfo").write_text("MemAvailable:    500000 kB\n")
    device = "name=Orin;cc=8.7;sm=8;memory=500000000;integrated=1;driver=12060"
    report = rig.finish(FAKE_CUDART_DEVICE=device).report
    assert report["built"]["workspace_bytes"] == 250_000 * 1024
    assert "workspace capped to 245 MiB of the recipe's 1,024 MiB" in report["notes"][0]


def test_a_profile_over_the_memory_of_the_module(rig: Rig) -> None:
    rig.bundle.recipe["predicted"]["scratch_bytes"][1] = 9 << 30
    done = rig.finish()
    assert done.code == 62
    assert "bucket 1 (pad batch 1..2, length 33..64) needs 9,217 MiB" in done.stderr
    assert "8,192 MiB of memory" in done.stderr and "--force" in done.stderr
    assert rig.calls("Builder") == []
    assert rig.finish("--force").report["state"] == "finished"


def test_too_little_disk(rig: Rig) -> None:
    rig.bundle.recipe["predicted"]["engine_bytes"] = 1 << 47
    rig.bundle.recipe["device"]["memory_bytes"] = 1 << 48
    device = f"name=Orin;cc=8.7;sm=8;memory={1 << 48};integrated=1;driver=12060"
    done = rig.finish(FAKE_CUDART_DEVICE=device)
    assert done.code == 63 and "are free, about 134,217,792 MiB are needed" in done.stderr


def test_a_cache_that_can_t_be_used(rig: Rig) -> None:
    rig.cache.write_text("a file")
    done = rig.finish()
    assert done.code == 64 and "EDGECOMPILE_CACHE" in done.stderr


# --- Golden vectors
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
    before = rig.finish().report
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
    assert rig.finish().code == 0
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


# --- Failures at each call
def test_operators_that_tensorrt_lacks_are_all_listed(rig: Rig) -> None:
    done = rig.finish(FAKE_TRT_LACKS="Gather,ReduceSum")
    assert done.code == 60
    assert "node 0 lookup (Gather): no importer registered" in done.stderr
    assert "node 4 sum (ReduceSum)" in done.stderr
    assert len(rig.calls("parse_from_file")) == 1  # not tried again
    assert rig.names() == []


BUILD_CALLS = ["Builder", "parse_from_file", "add_optimization_profile", "build_serialized_network"]
RUN_CALLS = [
    "Runtime",
    "deserialize_cuda_engine",
    "create_execution_context",
    "set_optimization_profile_async",
    "set_input_shape",
    "infer_shapes",
    "set_tensor_address",
    "execute_async_v3",
]


@pytest.mark.parametrize("how", ["", "raise"])
@pytest.mark.parametrize("name", [*BUILD_CALLS, *RUN_CALLS])
def test_a_call_of_tensorrt_that_fails(rig: Rig, name: str, how: str) -> None:
    done = rig.finish(FAKE_TRT_FAIL=f"{name}:1:{how}")
    assert done.code in (29, 60) and "error: " in done.stderr
    built = name in RUN_CALLS
    assert rig.names() == (["built.json", "engine"] if built else [])
    assert rig.finish().report["state"] == "finished"
    wanted = 1 + (name == "build_serialized_network")
    assert len(rig.calls("build_serialized_network")) == wanted  # nothing was lost
    check_served(rig, [3], ("default",))


@pytest.mark.parametrize("name", ["create_timing_cache", "set_timing_cache", "get_timing_cache"])
def test_a_timing_cache_that_fails_costs_time_alone(rig: Rig, name: str) -> None:
    assert rig.finish(FAKE_TRT_FAIL=f"{name}:*").report["state"] == "finished"


CUDA_CALLS = [
    "cudaGetDeviceCount:1",
    "cudaGetDevice:1",
    "cudaGetDeviceProperties:1",
    "cudaDeviceGetAttribute:1",
    "cudaMemGetInfo:1",
    "cudaMemGetInfo:2",
    "cudaDriverGetVersion:1",
    "cudaRuntimeGetVersion:1",
    "cudaStreamCreateWithFlags:1",
    "cudaMalloc:1",
    "cudaMalloc:2",
    "cudaHostAlloc:1",
    "cudaMemcpyAsync:1",
    "cudaStreamSynchronize:1",
    "cudaStreamSynchronize:3",
    "cudaStreamBeginCapture:1",
    "cudaStreamEndCapture:1",
    "cudaGraphInstantiateWithFlags:1",
    "cudaGraphLaunch:1",
]


@pytest.mark.parametrize("call", CUDA_CALLS)
def test_a_call_of_cuda_that_fails(rig: Rig, call: str) -> None:
    done = rig.finish(FAKE_CUDART_FAIL=call)
    if done.code == 0:
        # Devices that share memory copy nothing.
        assert call in ("cudaMemcpyAsync:1", "cudaMalloc:2")
        return
    assert done.code in (19, 29, 62), done.stderr
    assert "error: " in done.stderr and "cuda" in done.stderr
    stamps = [path for path in rig.cache.rglob("stamp.json")]
    assert stamps == []
    again = rig.finish()
    assert again.report["state"] == "finished"
    assert len(rig.calls("build_serialized_network")) == 1


# --- Killed at any moment
BUILDING = [
    "Builder:1",
    "create_network:1",
    "parse_from_file:1",
    "set_shape:2",
    "create_timing_cache:1",
    "build_serialized_network:1",
    "tactic:5",
    "get_timing_cache:1",
]
TESTING = [
    "Runtime:1",
    "deserialize_cuda_engine:1",
    "create_execution_context:2",
    "execute_async_v3:1",
    "execute_async_v3:4",
]


@pytest.mark.parametrize("point", [*BUILDING, *TESTING])
def test_killed_and_run_again(rig: Rig, point: str) -> None:
    rig.kill_at(point)  # and its worker ended with it
    assert list(rig.cache.rglob("stamp.json")) == []
    again = rig.finish()
    assert again.report["state"] == "finished" and rig.names() == WHOLE
    if point in TESTING:
        assert "built before, not tested yet" in again.stderr
        assert len(rig.calls("build_serialized_network")) == 1
    check_served(rig, [3, 40], ("default",))


@pytest.mark.parametrize("point", BUILDING)
def test_the_builder_is_killed(rig: Rig, point: str) -> None:
    (rig.folder / "counts").mkdir()
    rig.environment["FAKE_TRT_COUNTS"] = str(rig.folder / "counts")
    stderr = rig.kill_at(point, worker=True)
    assert "was ended by SIGKILL" in stderr and "trying again: workspace 256 MiB" in stderr
    del rig.environment["FAKE_TRT_COUNTS"]
    assert rig.finish().report["state"] == "already finished" and rig.names() == WHOLE


@pytest.mark.parametrize("point", TESTING)
def test_the_tester_is_killed(rig: Rig, point: str) -> None:
    stderr = rig.kill_at(point, worker=True)
    assert "error: the engine can't be tested" in stderr and "SIGKILL" in stderr
    assert rig.finish().report["state"] == "finished"
    assert len(rig.calls("build_serialized_network")) == 1


@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU"])
def test_a_tester_that_is_told_to_end_accuses_no_engine(rig: Rig, how: str) -> None:
    done = rig.finish(FAKE_TRT_FAIL=f"execute_async_v3:1:{how}")
    assert done.code == 60 and how in done.stderr
    assert rig.names() == ["built.json", "engine"]
    assert len(list((rig.cache / "timing").iterdir())) == 1
    assert rig.finish().report["state"] == "finished"
    assert len(rig.calls("build_serialized_network")) == 1


@pytest.mark.parametrize("how", ["segv", "abort", "SIGBUS", "SIGILL", "SIGFPE"])
def test_an_engine_that_ends_its_process_is_dropped(rig: Rig, how: str) -> None:
    done = rig.finish(FAKE_TRT_FAIL=f"execute_async_v3:1:{how}")
    assert done.code == 60 and rig.names() == []
    assert rig.finish().report["state"] == "finished"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(rig: Rig, number: signal.Signals) -> None:
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"tactic:3:{pause}") as child:
        worker = wait_for_pause(pause, child)
        os.kill(child.pid, number)
        stderr = child.communicate()[1]
    wait_for_end(worker)
    assert child.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in stderr
    assert rig.finish().report["state"] == "finished" and rig.names() == WHOLE


KILLER = """
import os, signal, sys
from edgecompile.runtime.__main__ import main
left = int(sys.argv[1])
def deadly(name, when):
    real = getattr(os, name)
    def call(*arguments, **options):
        global left
        if not when(*arguments):
            return real(*arguments, **options)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(os, name, call)
always = lambda *arguments: True
for name in ("replace", "unlink", "fsync", "mkdir", "ftruncate", "pwrite"):
    deadly(name, always)
deadly("open", lambda path, flags=0, *rest: flags & os.O_CREAT)
sys.exit(main(["finish", sys.argv[2], "--json"]))
"""


def test_killed_before_everything_that_it_writes(rig: Rig) -> None:
    """Between one change of the disk and the next, until there is none left to be killed at."""
    rig.bundle.write()
    command = [sys.executable, "-c", KILLER]
    steps = 0
    while True:
        steps += 1
        rig.log.unlink(missing_ok=True)
        done = subprocess.run(
            [*command, str(steps), str(rig.bundle.folder)],
            env=rig.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert rig.finish().code == 0
        # Killed right after the stamp, it leaves a word that nobody heeds any more.
        assert [name for name in rig.names() if name != "built.json"] == WHOLE
        check = json.loads((rig.engines[0] / "stamp.json").read_text())
        (engine,) = rig.engines[0].glob("engine-*")
        assert check["engine"]["size"] == engine.stat().st_size
        for path in [*rig.engines[0].iterdir(), *(rig.cache / "timing").iterdir()]:
            path.unlink()
    assert steps > 12


# --- Two at once
def test_the_second_waits_and_finds_the_engine(rig: Rig) -> None:
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"build_serialized_network:1:{pause}") as first:
        wait_for_pause(pause, first)
        with rig.start() as second:
            assert second.stderr is not None
            while True:
                line = second.stderr.readline()
                assert line, "it didn't wait"
                if "waiting until it is done" in line:
                    assert f"another process ({first.pid})" in line
                    break
            pause.unlink()
            first_report = json.loads(first.communicate()[0])
            second_report = json.loads(second.communicate()[0])
    assert first_report["state"] == "finished"
    assert second_report["state"] == "already finished"
    assert second_report["engine"] == first_report["engine"]
    assert len(rig.calls("build_serialized_network")) == 1


def test_the_second_goes_on_where_the_first_was_killed(rig: Rig) -> None:
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"deserialize_cuda_engine:1:{pause}") as first:
        wait_for_pause(pause, first)
        with rig.start() as second:
            assert second.stderr is not None
            while "waiting until it is done" not in second.stderr.readline():
                assert second.poll() is None
            first.kill()
            report = json.loads(second.communicate()[0])
    assert report["state"] == "finished"
    assert len(rig.calls("build_serialized_network")) == 1


def test_two_bundles_take_turns(rig: Rig, fake_cudart_path: Path) -> None:
    """Who builds measures kernels; two at once would measure each other."""
    (rig.folder / "other").mkdir()
    other = Rig(rig.folder / "other", fake_cudart_path)
    other.environment["EDGECOMPILE_CACHE"] = str(rig.cache)
    other.bundle.recipe["builder"]["optimization_level"] = 2
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"build_serialized_network:1:{pause}") as first:
        wait_for_pause(pause, first)
        with other.start() as second:
            assert second.stderr is not None
            while "waiting until it is done" not in second.stderr.readline():
                assert second.poll() is None
            assert other.calls("build_serialized_network") == []
            pause.unlink()
            assert json.loads(second.communicate()[0])["state"] == "finished"
        assert json.loads(first.communicate()[0])["state"] == "finished"
    assert len(rig.engines) == 2
