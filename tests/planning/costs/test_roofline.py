from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgecompile.buckets.costs.flops import FlopModel
from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.buckets.planner import plan_buckets
from edgecompile.errors import CostError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.planning.costs.roofline import ENCODER_RECORD, Efficiency, modelled_curve, roofline
from edgecompile.targets.profile import TargetProfile, load_target

REPOSITORY = Path(__file__).resolve().parents[3]
RECORD = REPOSITORY / "docs" / "benchmarks" / "2026-11-21-minilm-fp32-first.json"

# all-MiniLM-L6-v2 in closed form: 6 layers, hidden 384, inner 1536, tables not counted.
HIDDEN, INNER, LAYERS = 384, 1536, 6
MATRICES = LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER)
MINILM = FlopModel(
    model="minilm",
    length_axis="length",
    sizes=(("batch", 1),),
    flops_per_element=2.0 * MATRICES,
    flops_per_pair=4.0 * LAYERS * HIDDEN,
    fixed_flops=0.0,
    weight_bytes=42_598_400.0,
    fixed_bytes=0.0,
    bytes_per_element=292_000.0,
    bytes_per_pair=0.0,
    calls=60,
    lengths=(1, 128, 256),
    flops=(21_242_880, 2_868_903_936, 6_039_797_760),
)
PERFECT = Efficiency(1.0, 1.0, 0.0, "none")


def profile(**changes: Any) -> TargetProfile:
    figures: dict[str, Any] = {"cores": 4, "bandwidth_gbs": 20.0, "peak_gflops": (("fp32", 400.0),)}
    return replace(load_target("cpu-x86-64-v3"), **{**figures, **changes})


def pad_ms(curve: CostGrid) -> list[float]:
    return [point.pad_ms for point in curve.points if point.pad_ms is not None]


def test_a_curve_in_closed_form() -> None:
    work = replace(
        MINILM,
        flops_per_element=2e9,
        flops_per_pair=1e6,
        fixed_flops=5e8,
        weight_bytes=1e9,
        fixed_bytes=1e8,
        bytes_per_element=1e6,
        bytes_per_pair=1e4,
        calls=10,
    )
    efficiency = Efficiency(0.5, 0.8, 100.0, "made up")
    curve = modelled_curve(work, profile(), [1, 100], threads=2, efficiency=efficiency)
    assert curve.kind == "modelled"
    # Bandwidth 16 GB/s at 1; half of two of four cores' 400 GFLOP/s at 100.
    assert pad_ms(curve) == pytest.approx(
        [1 + 1e3 * (1.1e9 + 1e6 + 1e4) / 16e9, 1 + 1e3 * (5e8 + 2e11 + 1e10) / 100e9]
    )


def test_exact_costs_what_padding_costs() -> None:
    curve = modelled_curve(MINILM, profile(), [8, 64, 256])
    assert [point.exact_ms for point in curve.points] == pad_ms(curve)


def test_a_modelled_curve_alone_never_makes_padding_win() -> None:
    traffic = LengthDistribution.from_samples([5, 8, 8, 8, 12, 30, 31, 31, 64, 200])
    plan = plan_buckets(
        traffic,
        modelled_curve(MINILM, profile(), range(1, 257, 5)),
        max_buckets=4,
        max_sizes={"length": 256},
    )
    assert [bucket.mode for bucket in plan.buckets] == ["exact"]


def test_threads_take_their_part_of_the_peak() -> None:
    whole, one = (
        pad_ms(modelled_curve(MINILM, profile(), [256], threads=n, efficiency=PERFECT))[0]
        for n in (4, 1)
    )
    assert one == pytest.approx(4 * whole)
    assert pad_ms(modelled_curve(MINILM, profile(), [256], efficiency=PERFECT)) == [whole]


def test_narrow_weights_take_less_to_read() -> None:
    target = profile(peak_gflops=(("fp32", 400.0), ("bf16", 800.0)))
    full, half = (
        pad_ms(modelled_curve(MINILM, target, [1, 256], precision=p, efficiency=PERFECT))
        for p in ("fp32", "bf16")
    )
    moved = 42_598_400.0 + 292_000.0
    assert full[0] == pytest.approx(1e3 * moved / 20e9)
    assert half[0] == pytest.approx(1e3 * (42_598_400.0 / 2 + 292_000.0) / 20e9)
    assert half[1] == pytest.approx(full[1] / 2)


def test_every_number_used_is_recorded() -> None:
    target = load_target("cpu-x86-64-v4")
    work = replace(MINILM, misfit=0.125, notes=("a note", "another"))
    found = modelled_curve(work, target, [8], threads=1).provenance
    expected = {
        "profile": "cpu-x86-64-v4.toml",
        "precision": "fp32",
        "threads": "1",
        "profile.cores": "2",
        "profile.peak_gflops.fp32": "320.0",
        "profile.bandwidth_gbs": "38.4",
        "profile.sources.peak_gflops": dict(target.sources)["peak_gflops"],
        "efficiency.arithmetic": repr(ENCODER_RECORD.arithmetic),
        "efficiency.bandwidth": repr(ENCODER_RECORD.bandwidth),
        "efficiency.call_us": repr(ENCODER_RECORD.call_us),
        "model": "minilm",
        "work.sizes": "batch 1",
        "work.calls": "60",
        "work.weight_bytes": "42598400.0",
        "work.lengths": "1, 128, 256",
        "work.misfit": "0.125",
        "work.notes": "a note; another",
        "flops_per_pair": "9216.0",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert RECORD.name in found["efficiency.source"]
    assert RECORD.is_file()


@pytest.mark.parametrize(
    ("changes", "options", "wanted"),
    [
        ({"peak_gflops": ()}, {}, "peak_gflops.fp32 is missing in cpu-x86-64-v3.toml"),
        ({}, {"precision": "int8"}, "peak_gflops.int8 is missing in cpu-x86-64-v3.toml"),
        ({"bandwidth_gbs": None}, {}, "bandwidth_gbs is missing in cpu-x86-64-v3.toml"),
        ({}, {"threads": 5}, "5 threads are asked for, cpu-x86-64-v3.toml has cores = 4"),
    ],
)
def test_what_a_profile_lacks_is_named(
    changes: dict[str, Any], options: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(CostError) as caught:
        modelled_curve(MINILM, profile(**changes), [8], **options)
    assert wanted in caught.value.message


def test_all_that_a_profile_lacks_is_named() -> None:
    with pytest.raises(CostError) as caught:
        modelled_curve(MINILM, profile(bandwidth_gbs=None, peak_gflops=()), [8], threads=9)
    message = caught.value.message
    assert "bandwidth_gbs" in message and "peak_gflops.fp32" in message and "9 threads" in message
    assert caught.value.hint


def test_the_stated_efficiency_is_that_of_the_record() -> None:
    """The factors are fitted to this record, so this shows what they say, not that they hold
    elsewhere."""
    measured = json.loads(RECORD.read_text())["by_length"]["edgecompile"]
    lengths = [int(length) for length in measured]
    machine = profile(cores=2, bandwidth_gbs=38.4, peak_gflops=(("fp32", 204.0),))

    def misfit(efficiency: Efficiency) -> tuple[float, float]:
        curve = modelled_curve(MINILM, machine, lengths, efficiency=efficiency)
        errors = [math.log(p.pad_ms / measured[str(p.length)]) for p in curve.points if p.pad_ms]
        return math.sqrt(sum(e * e for e in errors) / len(errors)), max(map(abs, errors))

    typical, largest = misfit(ENCODER_RECORD)
    assert typical < 0.045 and largest < 0.12
    for change in (0.95, 1.05):
        for name in ("arithmetic", "bandwidth"):
            value = getattr(ENCODER_RECORD, name) * change
            assert misfit(replace(ENCODER_RECORD, **{name: value}))[0] > typical


def operations(**figures: float) -> FlopModel:
    """A model that does and moves nothing but this."""
    nothing = dict.fromkeys(
        ("weight_bytes", "bytes_per_element", "flops_per_element", "flops_per_pair"), 0.0
    )
    return replace(MINILM, **{**nothing, **figures})


def test_the_roofline_is_bound_by_memory_then_by_arithmetic() -> None:
    # 2 GFLOP per element at 100 GFLOP/s: 20 ms an element. 1 GB at 10 GB/s: 100 ms a run.
    curve = roofline(
        operations(flops_per_element=2e9, fixed_bytes=1e9),
        [1, 5, 10],
        peak_gflops=100,
        bandwidth_gb_s=10,
        overhead_ms=1.0,
        provenance={"target": "t"},
    )
    assert curve.kind == "modelled"
    assert [point.pad_ms for point in curve.points] == pytest.approx([101.0, 101.0, 201.0])
    assert [point.exact_ms for point in curve.points] == pad_ms(curve)
    assert curve.provenance["target"] == "t"
    assert curve.provenance["peak_gflops"] == "100"


def test_the_roofline_grows_with_the_square_of_the_length() -> None:
    work = operations(flops_per_pair=1e3)
    limits = {"peak_gflops": 1.0, "bandwidth_gb_s": 1.0, "overhead_ms": 0.0}
    short, long = roofline(work, [100, 200], **limits, provenance={}).points
    assert long.pad_ms == pytest.approx(4 * (short.pad_ms or 0.0))
