"""finish where memory or disk is short."""

from __future__ import annotations

import pytest

from tests.fake_gpu.rig import Rig
from tests.finish.outcome import REPORT, WHOLE, check_schema, check_served

MIB = 1 << 20


def with_buckets(rig: Rig) -> None:
    """Four buckets in all, so that profiles can be merged."""
    rig.bundle.add_bucket(65, 80)
    rig.bundle.add_bucket(81, 96)


@pytest.mark.parametrize("how", ["log", pytest.param("kill", marks=pytest.mark.slow)])
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


@pytest.mark.parametrize(
    "how",
    [
        "kill",
        pytest.param("segv", marks=pytest.mark.slow),
        pytest.param("abort", marks=pytest.mark.slow),
    ],
)
def test_a_builder_that_dies_once(rig: Rig, how: str) -> None:
    (rig.folder / "counts").mkdir()
    done = rig.finish(
        FAKE_TRT_FAIL=f"build_serialized_network:1:{how}",
        FAKE_TRT_COUNTS=str(rig.folder / "counts"),
    )
    assert [item["workspace_bytes"] // MIB for item in done.report["attempts"]] == [1024, 256]
    signal_name = {"kill": "SIGKILL", "segv": "SIGSEGV", "abort": "SIGABRT"}[how]
    assert f"was ended by {signal_name}" in done.stderr


@pytest.mark.parametrize(
    ("how", "code"), [("segv", 60), pytest.param("kill", 62, marks=pytest.mark.slow)]
)
def test_a_builder_that_always_dies(rig: Rig, how: str, code: int) -> None:
    done = rig.finish(FAKE_TRT_FAIL=f"build_serialized_network:*:{how}")
    assert done.code == code and rig.names() == []
    if how == "segv":
        assert "crashed at every attempt" in done.stderr and "memory" not in done.stderr
    else:
        assert "end other programs" in done.stderr


def test_unclear_words_count_as_want_of_memory_where_that_is_predicted(rig: Rig) -> None:
    """TensorRT 8.6 speaks of kernels and handles where memory ran out."""
    unclear = {"FAKE_TRT_FAIL": "build_serialized_network:*"}
    assert rig.finish(**unclear).code == 60
    rig.bundle.recipe["predicted"]["scratch_bytes"][1] = 9 << 30
    rig.bundle.write()
    done = rig.finish("--force", **unclear)
    assert done.code == 62 and "optimization level 1, 1 profile: TensorRT built no" in done.stderr
    # The parser's words are clear.
    done = rig.finish("--force", FAKE_TRT_LACKS="Gather")
    assert done.code == 60 and "trying again" not in done.stderr


def test_main_memory_beside_a_gpu_that_has_its_own(rig: Rig) -> None:
    rig.bundle.recipe["predicted"]["host_bytes"] = 6 << 30
    (rig.root / "proc/meminfo").write_text(f"MemAvailable:    {5 << 20} kB\n")
    assert rig.finish().report["state"] == "finished"  # an Orin has one memory for both
    device = f"name=Orin;cc=8.7;sm=8;memory={8 << 30};integrated=0;driver=12060"
    done = rig.finish(FAKE_CUDART_DEVICE=device)
    assert done.code == 62
    assert "6,144 MiB of main memory, and 5,120 MiB are free" in done.stderr
    done = rig.finish("--force", FAKE_CUDART_DEVICE=device, FAKE_TRT_FAIL="Builder:*:kill")
    assert done.code == 62 and "MiB were free, 5,120 MiB of main memory); tried" in done.stderr


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
