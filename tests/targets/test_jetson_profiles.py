"""Profiles of Jetson modules: GPUs, releases of JetPack, and the costs that they make likely."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgecompile.errors import TargetError
from edgecompile.onnx_files.operators import known_releases
from edgecompile.planning.costs.gpu_roofline import (
    LAUNCH_US,
    MLPERF_RECORD,
    TENSORRT_8_6,
    gpu_curve,
)
from edgecompile.planning.costs.roofline import Efficiency
from edgecompile.targets.gpu import GpuSpec
from edgecompile.targets.jetpack import find_older, list_jetpacks, load_jetpack
from edgecompile.targets.profile import TargetProfile, list_targets, load_target
from tests.planning.costs.test_roofline import MINILM

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
JETSONS = [name for name in list_targets() if load_target(name).kind == "jetson"]
PROFILE = """
name = "mine"
kind = "jetson"
description = "a module of mine"
variants = ["aarch64-neon"]
jetpacks = ["6.2"]
cores = 4
memory_gib = 8
glibc = "2.35"
python = "3.10"

[gpu]
compute_capability = "8.7"
clock_mhz = 600
bandwidth_gbs = 60
memory_gib = 8
models = ["Mine"]
peak_gflops = { fp32 = 1000, fp16 = 8000, int8 = 16000 }
"""


def gpu_of(name: str) -> GpuSpec:
    gpu = load_target(name).gpu
    assert gpu is not None
    return gpu


def test_the_modules_of_the_mission_are_there() -> None:
    assert JETSONS == ["jetson-agx-orin", "jetson-orin", "jetson-orin-nano", "jetson-orin-nx"]


@pytest.mark.parametrize("name", JETSONS)
def test_a_module_is_whole(name: str) -> None:
    profile = load_target(name)
    assert profile.kind == "jetson" and profile.archs == ("aarch64",)
    assert set(profile.jetpacks) <= set(list_jetpacks()) and profile.jetpacks[0] == "6.2"
    assert "gpu" in dict(profile.sources)
    assert TargetProfile.from_json(profile.to_json()) == profile
    # Its own cores are those of the CPU's profile.
    cpu = load_target(f"{name}-cpu")
    assert (profile.cores, profile.glibc, profile.variants) == (cpu.cores, cpu.glibc, cpu.variants)
    assert gpu_of(name).memory_gib == profile.memory_gib


@pytest.mark.parametrize("name", [name for name in JETSONS if name != "jetson-orin"])
def test_peaks_are_made_of_multiprocessors_and_clock(name: str) -> None:
    gpu = gpu_of(name)
    assert gpu.sm_count is not None
    cycles = gpu.sm_count * gpu.clock_mhz / 1e3  # 1e9 a second
    for precision, multiply_adds in {"fp32": 128, "fp16": 1024, "int8": 2048}.items():
        made = 2 * multiply_adds * cycles
        assert dict(gpu.peak_gflops)[precision] == pytest.approx(made, rel=0.01)


def test_any_orin_takes_any_number_of_multiprocessors() -> None:
    assert gpu_of("jetson-orin").sm_count is None
    assert all(any("Orin" in model for model in gpu_of(name).models) for name in JETSONS)


def test_releases_say_what_may_finish_a_bundle() -> None:
    assert list_jetpacks() == ("6.0", "6.2", "7.2")
    for name in list_jetpacks():
        release = load_jetpack(name)
        least, below, own = (
            tuple(map(int, text.split(".")[:2]))
            for text in (release.tensorrt_least, release.tensorrt_below, release.tensorrt)
        )
        assert least <= own < below
        # What is compared with the list of operators has to be a release that the list knows.
        assert release.tensorrt_least in known_releases()
        assert release.opset <= 20


def test_every_release_that_may_finish_is_compared() -> None:
    known = ("10.3", "10.7", "10.16", "11.4", "11.6")
    assert load_jetpack("6.0").releases(("8.5", "8.6", *known)) == ("8.6",)
    profile = load_target("jetson-orin")
    older = find_older(profile, load_jetpack("6.2"))
    assert older is not None and older.name == "6.0" and "8.6.0" in older.ran
    assert find_older(profile, load_jetpack("6.0")) is None
    assert find_older(profile, load_jetpack("7.2")) is None
    assert load_jetpack("6.2").releases(known) == ("10.3",)
    assert load_jetpack("7.2").releases(known) == ("10.16", "11.4")


@pytest.mark.parametrize(("name", "hint"), [("6.3", "6.2, 7.2"), ("../6.2", "6.0, 6.2")])
def test_unknown_release(name: str, hint: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_jetpack(name)
    assert hint in str(caught.value.hint)


def test_malformed_release(tmp_path: Path) -> None:
    folder = tmp_path / "jetpacks"
    folder.mkdir()
    (folder / "9.9.toml").write_text('name = "9.8"\nubuntu = 3\nopset = 99\nbogus = 1\n')
    with pytest.raises(TargetError) as caught:
        load_jetpack("9.9", [tmp_path])
    for problem in ("'9.8' differs", "ubuntu: expected", "opset: expected", "bogus: unknown key"):
        assert problem in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('kind = "jetson"', 'kind = "cpu"', "gpu: only a profile of kind jetson or cuda has it"),
        ('jetpacks = ["6.2"]', "", "jetpacks: missing"),
        ("clock_mhz = 600", "", "gpu.clock_mhz: missing"),
        ("clock_mhz = 600", "clock_mhz = -1", "gpu.clock_mhz: expected a number above 0"),
        ("clock_mhz = 600", "clock_mhz = 600\nsm_count = 0", "gpu.sm_count: expected a whole"),
        ("fp16 = 8000, ", "", "gpu.peak_gflops.fp16: missing"),
        ("fp16 = 8000", "fp16 = 8000, fp4 = 1", "unknown precision 'fp4'"),
        ('"8.7"', "8.7", "gpu.compute_capability: expected a string"),
        ('models = ["Mine"]', "models = []", "gpu.models: expected at least 1"),
        ("bandwidth_gbs = 60", "bandwith_gbs = 60", "did you mean bandwidth_gbs?"),
    ],
)
def test_malformed_gpu(write: Callable[..., Path], old: str, new: str, problem: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(write((old, new)))
    assert problem in caught.value.message


def test_a_profile_of_ones_own(write: Callable[..., Path]) -> None:
    profile = load_target(write())
    assert profile.gpu is not None and profile.gpu.memory_bytes == 8 << 30
    assert profile.gpu.sm_count is None


def test_a_curve_in_closed_form(write: Callable[..., Path]) -> None:
    profile = load_target(write())
    work = replace(
        MINILM,
        flops_per_element=1e9,
        flops_per_pair=0.0,
        weight_bytes=4e8,
        bytes_per_element=0.0,
        calls=100,
    )
    curve = gpu_curve(work, profile, [1, 100], efficiency=Efficiency(0.5, 0.5, 2.0, "made up"))
    first, last = curve.points
    # 0.2 GB of half-precision weights at 30 GB/s, and 1e11 operations at 4e12 a second.
    assert first.pad_ms == pytest.approx(0.2 / 30 * 1e3 + 0.2)
    assert last.pad_ms == pytest.approx(25 + 0.2)
    for point in curve.points:
        assert point.exact_ms is not None and point.pad_ms is not None
        assert point.exact_ms - point.pad_ms == pytest.approx(100 * LAUNCH_US / 1e3)
    assert curve.kind == "modelled" and "not measured" in dict(curve.provenance)["how"]


def test_without_graphs_padding_saves_no_launches() -> None:
    profile = load_target("jetson-orin-nano")
    (point,) = gpu_curve(MINILM, profile, [64], graphs=False).points
    assert point.pad_ms == point.exact_ms
    (graph,) = gpu_curve(MINILM, profile, [64]).points
    assert graph.pad_ms is not None and point.pad_ms is not None and graph.pad_ms < point.pad_ms


def test_narrower_is_cheaper() -> None:
    profile = load_target("jetson-orin-nano")
    times = [
        gpu_curve(MINILM, profile, [256], precision=precision).points[0].pad_ms
        for precision in ("fp32", "fp16", "int8")
    ]
    assert times == sorted(times, reverse=True, key=lambda ms: ms or 0.0) and len(set(times)) == 3


def test_weights_of_int8_save_bytes_alone() -> None:
    profile = load_target("jetson-orin-nano")

    def ms(length: int, **how: str) -> float:
        (point,) = gpu_curve(MINILM, profile, [length], **how).points  # type: ignore[arg-type]
        assert point.pad_ms is not None
        return point.pad_ms

    stored = {"precision": "int8", "products": "fp16"}
    assert ms(8, **stored) < ms(8)
    assert ms(512, precision="int8") < ms(512, **stored) <= ms(512)


def test_the_efficiency_is_that_of_the_record() -> None:
    """BERT-Large in int8 at 384 tokens took 6.55 ms on an AGX Orin and 16.89 on an Orin NX."""
    hidden, layers, tokens = 1024, 24, 384
    flops = layers * (24 * hidden**2 * tokens + 4 * hidden * tokens**2)
    for name, ms in {"jetson-agx-orin": 6.55, "jetson-orin-nx": 16.89}.items():
        peak = 1e9 * dict(gpu_of(name).peak_gflops)["int8"]
        assert flops / peak / MLPERF_RECORD.arithmetic * 1e3 == pytest.approx(ms, rel=0.06)
    for name, ms in {"jetson-agx-orin": 3.27, "jetson-orin-nx": 5.71}.items():
        seconds = layers * 12 * hidden**2 / (1e9 * gpu_of(name).bandwidth_gbs)
        assert seconds / MLPERF_RECORD.bandwidth * 1e3 == pytest.approx(ms, rel=0.1)


def test_the_efficiency_of_tensorrt_8_6_is_that_of_its_record(write: Callable[..., Path]) -> None:
    """MiniLM padded to 128 in float16, on the whole of an H100 and on 8 and 16 of its multiprocessors."""
    rows = json.loads((RECORDS / "2026-11-24-tensorrt-8.6.json").read_text())["shapes"]
    cells = [
        row
        for row in rows
        if row["step"] == "run" and row["way"] == "pad" and row["graph"] and "ms" in row
    ]
    assert len(cells) == 36
    for row in cells:
        share = (row["multiprocessors"] or 132) / 132
        peak = ("fp16 = 8000", f"fp16 = {989e3 * share:.0f}")
        profile = load_target(write(peak, ("bandwidth_gbs = 60", "bandwidth_gbs = 3350")))
        work = replace(
            MINILM,
            flops_per_element=row["batch"] * MINILM.flops_per_element,
            flops_per_pair=row["batch"] * MINILM.flops_per_pair,
            bytes_per_element=row["batch"] * MINILM.bytes_per_element,
        )
        (point,) = gpu_curve(work, profile, [128], efficiency=TENSORRT_8_6["fp16"]).points
        assert point.pad_ms == pytest.approx(row["ms"], rel=0.2)
