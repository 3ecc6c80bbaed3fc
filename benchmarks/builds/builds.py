"""Measures what building takes: one program, twelve, a rebuild, one changed bucket; see docs/benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import edgecompile
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.hosts.identity import describe_machine
from examples.demo.inputs import find_model

REPOSITORY = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).resolve().parent / "child.py"
#: The marks of the project: at most so many times one program's time, and so many seconds.
GRID_MARK, AGAIN_MARK = 4.0, 3.0
EDGES = (24, 48, 80, 128, 192, 256)
_TARGET = """name = "target-{count}"
description = "what benchmarks/run builds builds for"
kind = "cpu"
variants = {variants}
cores = 2
clock_ghz = 2.5
memory_gib = 4.0
glibc = "2.34"
python = "3.9"
"""


@dataclass(frozen=True)
class Scenario:
    """One build.

    Attributes:
        name: in the record.
        plan: the buckets.
        variants: instruction sets.
        fresh: with empty caches and an empty work folder, else with those of the one before.
    """

    name: str
    plan: BucketPlan
    variants: tuple[str, ...]
    fresh: bool


def make_plan(edges: Sequence[int], *, moved: int | None = None) -> BucketPlan:
    """Buckets up to each edge; ``moved``: the one whose kernels are tuned for another length."""
    buckets = []
    low = 1
    for index, high in enumerate(edges):
        hint = (low + high) // 2 + (index == moved)
        sizes = (("length", AxisRange(low, high, hint)), ("batch", AxisRange(1, 1, 1)))
        buckets.append(Bucket("exact", sizes))
        low = high + 1
    return BucketPlan("length", tuple(buckets))


def scenarios() -> tuple[Scenario, ...]:
    """In the order that they are run."""
    both = ("x86-64-v3", "x86-64-v4")
    grid = make_plan(EDGES)
    return (
        Scenario("1 bucket, 1 variant", make_plan(EDGES[-1:]), both[:1], True),
        Scenario("6 buckets, 2 variants", grid, both, True),
        Scenario("nothing changed", grid, both, False),
        Scenario("one bucket changed", make_plan(EDGES, moved=2), both, False),
    )


def run_build(item: Scenario, model: Path, folder: Path) -> dict[str, Any]:
    """Builds in a fresh process; what it said, and ``wall_s`` of the process."""
    names = json.dumps(list(item.variants))
    target = folder / f"target-{len(item.variants)}.toml"
    target.write_text(_TARGET.format(count=len(item.variants), variants=names))
    plan = folder / "plan.json"
    plan.write_text(json.dumps(item.plan.to_json()))
    cache = folder / "cache"
    environment = {**os.environ, "EDGECOMPILE_CACHE_DIR": str(cache)}
    arguments = [str(model), str(target), str(plan), str(folder / "work"), str(folder / "it.ecb")]
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(CHILD), *arguments], capture_output=True, text=True, env=environment
    )
    wall = time.perf_counter() - begun
    if done.returncode != 0:
        sys.exit(f"error: {item.name}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**answer, "wall_s": wall}


def run_again(model: Path, folder: Path) -> dict[str, float]:
    """``edgecompile build`` twice with one work folder: seconds of the second, which has nothing
    to do, and of the first."""
    lengths = folder / "lengths.txt"
    lengths.write_text("\n".join(map(str, (5, 9, 12, 20, 33, 40, 64, 100, 256))))
    command = [sys.executable, "-m", "edgecompile", "build", str(model), "--lengths", str(lengths)]
    command += ["--work-dir", str(folder / "again.work"), "--output", str(folder / "again.ecb")]
    command += ["--max-length", "256", "--force", "--quiet"]
    environment = {**os.environ, "EDGECOMPILE_CACHE_DIR": str(folder / "cache")}
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        seconds.append(time.perf_counter() - begun)
        if done.returncode != 0:
            sys.exit(f"error: edgecompile build: {done.stderr.strip()}")
    return {"first_s": seconds[0], "again_s": seconds[1]}


def measure(model: Path) -> dict[str, Any]:
    """All scenarios, and the ratios that the marks are about."""
    builds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="edgecompile-build-") as base:
        folder = Path(base)
        for number, item in enumerate(scenarios()):
            if item.fresh:
                folder = Path(base) / f"{number}"
                folder.mkdir()
            print(f"== {item.name}", file=sys.stderr, flush=True)
            builds[item.name] = run_build(item, model, folder)
        print("== edgecompile build, twice", file=sys.stderr, flush=True)
        again = run_again(model, folder)
    one, grid, same, changed = builds.values()
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "builds": builds,
        "command": again,
        "ratios": {
            "grid_over_one": grid["wall_s"] / one["wall_s"],
            "same_over_grid": same["wall_s"] / grid["wall_s"],
            "changed_over_grid": changed["wall_s"] / grid["wall_s"],
        },
        "machine": describe_machine(),
        "edgecompile": edgecompile.__version__,
    }


def render(record: Mapping[str, Any]) -> str:
    """The record for people."""
    ratio, again = record["ratios"]["grid_over_one"], record["command"]["again_s"]
    rows = []
    for name, item in record["builds"].items():
        stages = item["seconds"]
        cells = [f"{stages[key]:.1f}" for key in _STAGES]
        inside = [f"{item['inside'].get(key, 0.0):.1f}" for key in _INSIDE]
        count = [f"{len(item['programs'])}", f"{item['objects']}"]
        rows.append([name, f"{item['wall_s']:.1f}", *count, *cells, *inside])
    columns = ["", "seconds", "programs made", "compiler runs", *_STAGES]
    columns += [f"of compile: {key}" for key in _INSIDE]
    rule = ["---", *["---:"] * (len(columns) - 1)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *rows))
    changed = ", ".join(record["builds"]["one bucket changed"]["programs"])
    return f"""# Building, {record["started"][:10]}

Six buckets for two variants take **{ratio:.2f}** of the time of one bucket for one variant (mark
{GRID_MARK:g}). `edgecompile build` with nothing changed takes **{again:.1f} s** (mark {AGAIN_MARK:g};
the first time {record["command"]["first_s"]:.1f} s). One changed bucket made again: {changed or "nothing"}.

{table}

Seconds of one run each; a build is a process of its own, its start and imports included. *Of compile*
adds up what ran side by side. The first two builds start from empty caches and an empty work
folder, the others from what the one before left.

- machine: {", ".join(f"{key} {value}" for key, value in record["machine"].items())}
- edgecompile {record["edgecompile"]}, started {record["started"]}
"""


_STAGES = ("import", "load the model", "export", "compile", "verify and pack")
_INSIDE = ("generate", "compile", "link")


def main() -> int:
    """Runs; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks/run builds", description=__doc__)
    parser.add_argument("--model", type=Path, help="folder; default: all-MiniLM-L6-v2")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    parser.add_argument("--name", default="build", help="of the record, behind the date")
    options = parser.parse_args()
    record = measure((options.model or find_model()).resolve())
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"{record['started'][:10]}-{options.name}"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".md").write_text(render(record))
    print(json.dumps({"record": f"{stem}.md", **record["ratios"], **record["command"]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
