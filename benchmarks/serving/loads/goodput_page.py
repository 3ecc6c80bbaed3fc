"""The page and the drawings of a record of goodput.py."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.serving.loads.rounds import Point, tell

COLUMNS = ("p50 ms", "p99 ms", "429", "504", "texts a run")
COLUMNS += ("CPUs: worker", "its loop", "clients", "lag p99 ms")
#: Milliseconds that latencies are to stay within where no request has a deadline.
BOUNDS = (50.0, 100.0, 200.0)


def write_page(result: Mapping[str, Any], path: Path) -> str:
    """Writes the page and the drawings beside a record; returns the page."""
    page = render(result) + "\n"
    path.with_suffix(".md").write_text(page)
    write_drawings(result, path)
    return page


def write_drawings(result: Mapping[str, Any], path: Path) -> None:
    """The drawings of each bundle beside a record; none without matplotlib, as on a machine that only measures."""
    try:
        from benchmarks.serving.loads.drawings import draw_record
    except ImportError:
        return
    for name in result["predicted"]:
        stem = path.stem if len(result["predicted"]) == 1 else f"{path.stem}-{name}"
        draw_record(panels(result, name), path.with_name(stem), result["slo"] * 1e3)


def panels(result: Mapping[str, Any], bundle: str) -> dict[str, dict[str, list[Point]]]:
    """What is drawn of a bundle: by traffic and by shape, points in order of the load; a step has one alone."""
    by_traffic: dict[str, dict[str, list[Point]]] = {}
    for head, rows in grouped(result["rows"]):
        name, traffic, shape, load = head
        if name == bundle and load is not None:
            lines = by_traffic.setdefault(traffic, {})
            lines.setdefault(shape, []).append(Point.of(load, rows))
    return by_traffic


def grouped(rows: Sequence[Mapping[str, Any]]) -> list[tuple[tuple[Any, ...], list[Any]]]:
    """Rows of all rounds, together by what they measured, in the order of the first round."""
    keys = ("bundle", "traffic", "shape", "load")
    order = {tuple(row[key] for key in keys): i for i, row in reversed([*enumerate(rows)])}

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    ordered = sorted(rows, key=lambda row: order[key(row)])
    return [(head, [*group]) for head, group in groupby(ordered, key)]


def render(result: Mapping[str, Any]) -> str:
    """A table for each bundle and traffic; medians of the rounds where nothing else is said."""
    parts = []
    every = grouped(result["rows"])
    for (bundle, traffic), group in groupby(every, lambda item: item[0][:2]):
        shares = result["predicted"][bundle][traffic]["shares"]
        lines = []
        for (*_, shape, load), rows in group:
            cells = _cells(rows)
            if load is None:  # so many clients wait: whether in time says nothing
                cells[1:3] = ["", ""]
            lines.append([*_head(shape, load, shares), *cells])
        heads = ["requests come", "load", "simulated", "asked/s", "in time/s", "of capacity"]
        parts += [f"## {bundle}: {traffic}", table([*heads, *COLUMNS], lines)]
        if result.get("patient"):
            parts.append(_tell_highest(panels(result, bundle)[traffic]))
    worst = max(row["error"] for row in result["rows"])
    ends = f"Largest difference of an answer from `run`: {worst:.1e}."
    return "\n\n".join([*parts, ends])


def _tell_highest(lines: Mapping[str, Sequence[Point]]) -> str:
    """The highest loads within each of BOUNDS, by shape."""
    rows = [[shape, *(highest(line, bound) for bound in BOUNDS)] for shape, line in lines.items()]
    heads = [f"p99 to {bound:g} ms: load" for bound in BOUNDS]
    return table(["requests come", *heads], rows)


def highest(line: Sequence[Point], bound: float) -> str:
    """The highest load whose p99 is within a bound, of the medians of rounds, between two loads by a straight line.

    What is below the least load is told so, and what is above the highest one.
    """
    late = [(point.load, statistics.median(point.p99)) for point in line]
    if late[0][1] > bound:
        return f"< {late[0][0]:g}"
    for (low, before), (high, after) in pairwise(late):
        if after > bound:
            return f"{low + (high - low) * (bound - before) / (after - before):.2f}"
    return f"> {late[-1][0]:g}"


def _head(shape: str, load: float | None, shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    if load is None:
        return ["without a pause", "", ""]
    return [shape, f"{load:g}", f"{shares[shape][str(load)]:.2f}"]


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def middle(key: str) -> float:
        return statistics.median(row[key] for row in rows)

    asked = sum(sum(row["statuses"].values()) for row in rows)
    missed = [
        sum(row["statuses"].get(status, 0) for row in rows) / asked for status in ("429", "504")
    ]
    return [
        f"{middle('asked_per_s'):.0f}",
        tell([row["in_time_per_s"] for row in rows], 0),
        tell([row["share"] for row in rows], 2),
        f"{middle('p50_ms'):.0f}",
        f"{middle('p99_ms'):.0f}",
        *(f"{share:.1%}" for share in missed),
        f"{middle('texts_a_run'):.1f}",
        f"{middle('worker_cpus'):.2f}",
        f"{middle('loop_cpus'):.2f}",
        f"{middle('client_cpus'):.2f}",
        f"{middle('lag_p99_ms'):.1f}",
    ]
