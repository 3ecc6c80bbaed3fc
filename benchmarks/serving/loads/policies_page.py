"""The page of a record of policies.py."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import listing, table
from benchmarks.serving.loads.rounds import Point, tell, tell_ratios


def render(result: Mapping[str, Any]) -> str:
    """The tables of a record."""
    parts = []
    for traffic, predicted in result["predicted"].items():
        rates = {
            policy: [
                row["texts_per_s"]
                for row in result["saturated"]
                if (row["traffic"], row["policy"]) == (traffic, policy)
            ]
            for policy in dict.fromkeys(row["policy"] for row in result["saturated"])
        }
        ours = rates["by-cost"]
        errors: dict[str, list[float]] = {}
        for row in result["saturated"]:
            if row["traffic"] == traffic and "error" in row:
                errors.setdefault(row["policy"], []).append(row["error"])
        rows = [
            [
                policy,
                f"{statistics.median(per_s):.1f}",
                " ".join(f"{x:.1f}" for x in per_s),
                tell_ratios(ours, per_s),
                f"{predicted[policy]:.1f}" if policy in predicted else "-",
                f"{max(errors[policy]):.0e}" if policy in errors else "-",
            ]
            for policy, per_s in sorted(rates.items(), key=lambda pair: -statistics.median(pair[1]))
        ]
        columns = ["rule", "texts/s", "rounds", "ours / it", "predicted", "largest difference"]
        parts += [f"## {traffic}: all requests at once", table(columns, rows)]
        if not result["load"]:
            continue
        columns = ["rule", "load", "offered/s", "in time/s", "of capacity", "p50 ms", "p99 ms"]
        columns += ["refused", "given up", "CPUs", "the loop's"]
        rows = [
            _load_cells(policy, load, group)
            for (name, policy, load), group in grouped(result["load"]).items()
            if name == traffic
        ]
        parts += [
            f"## {traffic}: an answer within {result['slo'] * 1e3:g} ms",
            table(columns, rows),
        ]
    facts = {key: result[key] for key in ("cpus", "load_before", "load_after", "seconds", "host")}
    return "\n\n".join([*parts, "## How", listing(facts)]) + "\n"


def grouped(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, float], list[Any]]:
    """Rows of all rounds by traffic, rule and load, ascending in the load."""
    groups: dict[tuple[str, str, float], list[Any]] = {}
    for row in sorted(rows, key=lambda row: float(row["factor"])):
        share = row["goodput_per_s"] / row["capacity"]
        key = row["traffic"], row["policy"], row["factor"]
        groups.setdefault(key, []).append({**row, "share": share})
    return groups


def write_drawings(result: Mapping[str, Any], path: Path) -> None:
    """The drawings beside a record; none without matplotlib, as on a machine that only measures."""
    try:
        from benchmarks.serving.loads.drawings import draw_record
    except ImportError:
        return
    if not result["load"]:
        return
    panels: dict[str, dict[str, list[Point]]] = {traffic: {} for traffic in result["predicted"]}
    rules = sorted({row["policy"] for row in result["load"]}, key=lambda name: name != "by-cost")
    for traffic in panels:
        panels[traffic] = {rule: [] for rule in rules}
    for (traffic, rule, load), rows in grouped(result["load"]).items():
        panels[traffic][rule].append(Point.of(load, rows))
    draw_record(panels, path.with_suffix(""), result["slo"] * 1e3)


def _load_cells(rule: str, load: float, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def middle(key: str) -> float:
        return statistics.median(row[key] for row in rows if row[key] is not None)

    offered = sum(row["offered"] for row in rows)
    answered = any(row["p50_ms"] is not None for row in rows)
    return [
        rule,
        f"{load:g}",
        f"{middle('offered_per_s'):.0f}",
        f"{middle('goodput_per_s'):.1f}",
        tell([row["share"] for row in rows], 2),
        *(f"{middle(key):.1f}" if answered else "-" for key in ("p50_ms", "p99_ms")),
        *(f"{sum(row[key] for row in rows) / offered:.1%}" for key in ("refused", "expired")),
        f"{middle('cpus'):.2f}",
        f"{middle('loop_cpus'):.2f}",
    ]
