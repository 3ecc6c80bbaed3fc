"""The page of a record of benchmarks/policies.py."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import listing, table


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
        ours = statistics.median(rates["by-cost"])
        errors: dict[str, list[float]] = {}
        for row in result["saturated"]:
            if row["traffic"] == traffic and "error" in row:
                errors.setdefault(row["policy"], []).append(row["error"])
        rows = [
            [
                policy,
                f"{statistics.median(found):.1f}",
                " ".join(f"{x:.1f}" for x in found),
                f"{ours / statistics.median(found):.2f}",
                f"{predicted[policy]:.1f}" if policy in predicted else "-",
                f"{max(errors[policy]):.0e}" if policy in errors else "-",
            ]
            for policy, found in sorted(rates.items(), key=lambda pair: -statistics.median(pair[1]))
        ]
        columns = ["rule", "texts/s", "rounds", "ours / it", "predicted", "largest difference"]
        parts += [f"## {traffic}: all requests at once", table(columns, rows)]
        loads = [row for row in result["load"] if row["traffic"] == traffic]
        columns = [
            "rule",
            "load",
            "offered/s",
            "in time/s",
            "of capacity",
            "p50 ms",
            "p99 ms",
            "refused",
            "given up",
            "CPUs",
            "the loop's",
        ]
        rows = [
            [
                row["policy"],
                f"{row['factor']:g}",
                f"{row['offered_per_s']:.0f}",
                f"{row['goodput_per_s']:.1f}",
                f"{row['goodput_per_s'] / row['capacity']:.2f}",
                *("-" if row[key] is None else f"{row[key]:.1f}" for key in ("p50_ms", "p99_ms")),
                f"{row['refused'] / row['offered']:.1%}",
                f"{row['expired'] / row['offered']:.1%}",
                f"{row['cpus']:.2f}",
                f"{row['loop_cpus']:.2f}",
            ]
            for row in loads
        ]
        parts += [
            f"## {traffic}: an answer within {result['slo'] * 1e3:g} ms",
            table(columns, rows),
        ]
    facts = {key: result[key] for key in ("cpus", "load_before", "load_after", "seconds", "host")}
    return "\n\n".join([*parts, "## How", listing(facts)]) + "\n"
