"""benchmarks/run builds: its plans and its record."""

from __future__ import annotations

from benchmarks.builds import builds as bench_build


def test_one_bucket_differs_in_what_it_is_tuned_for() -> None:
    one, grid, same, changed = bench_build.scenarios()
    assert len(one.plan.buckets) == 1 and len(one.variants) == 1 and one.fresh
    assert len(grid.plan.buckets) == 6 and len(grid.variants) == 2 and grid.fresh
    assert same.plan == grid.plan and not same.fresh and not changed.fresh
    pairs = zip(grid.plan.buckets, changed.plan.buckets, strict=True)
    different = [(a, b) for a, b in pairs if a != b]
    assert len(different) == 1
    spans = [(bucket.lo, bucket.hi) for bucket in different[0]]
    assert spans[0] == spans[1], "its neighbours stay as they are"
    assert one.plan.max_length == grid.plan.max_length


def test_the_record_holds_the_marks() -> None:
    build = {
        "wall_s": 60.0,
        "programs": ["x86-64-v3/bucket-2", "x86-64-v4/bucket-2"],
        "objects": 3,
        "seconds": dict.fromkeys(bench_build._STAGES, 1.25),
        "inside": {"generate": 2.0},
    }
    names = [item.name for item in bench_build.scenarios()]
    text = bench_build.render(
        {
            "started": "2026-01-02T03:04:05+00:00",
            "builds": dict.fromkeys(names, build),
            "command": {"first_s": 90.0, "again_s": 1.5},
            "ratios": {"grid_over_one": 3.25},
            "machine": {"cpu": "a CPU"},
            "edgecompile": "1",
        }
    )
    assert text.startswith("# Building, 2026-01-02")
    assert "**3.25** of the time" in text and "takes **1.5 s**" in text
    assert "made again: x86-64-v3/bucket-2, x86-64-v4/bucket-2." in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(names) and len({line.count("|") for line in table}) == 1
