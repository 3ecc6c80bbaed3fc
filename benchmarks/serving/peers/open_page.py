"""The page and the drawings of a record of open_load.py."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.serving.loads.rounds import Point

NAMES = {"mlserver": "MLServer", "ray": "Ray Serve", "triton": "Triton"}


def write_page(result: Mapping[str, Any], path: Path) -> str:
    """Writes the page and the drawings beside a record; returns the page."""
    page = render([row for row in result["rows"] if "failed" not in row])
    path.with_suffix(".md").write_text(page)
    write_drawings(result, path)
    return page


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rounds side by side."""
    parts = []
    factors = sorted({row["load"] for row in rows if row["load"] is not None})
    for traffic in dict.fromkeys(row["traffic"] for row in rows):
        lines = []
        for system in dict.fromkeys(row["system"] for row in rows):
            own = [row for row in rows if (row["system"], row["traffic"]) == (system, traffic)]
            line = [
                _name(system),
                ", ".join(f"{r['answered_per_s']:.0f}" for r in own if r["load"] is None),
            ]
            for factor in factors:
                at = [row for row in own if row["load"] == factor]
                line.append(", ".join(f"{row['share']:.2f}" for row in at))
                line.append(", ".join(_late(row) for row in at))
            lines.append(line)
        heads = ["system", "without a pause, texts/s"]
        heads += [head for f in factors for head in (f"in time at {f}", f"p99 at {f}, ms")]
        parts.append(f"## {traffic}\n\n" + table(heads, lines))
    return "\n\n".join(parts) + "\n"


def write_drawings(result: Mapping[str, Any], path: Path) -> None:
    """The drawings beside a record, of each system's best setting; none without matplotlib, as on a machine that only measures."""
    try:
        from benchmarks.serving.loads.drawings import draw_record
    except ImportError:
        return
    loads = [row for row in result["rows"] if row.get("load") is not None]
    panels = {
        traffic: {
            name: _best([row for row in loads if (row["traffic"], _system(row)) == (traffic, name)])
            for name in sorted({*map(_system, loads)}, key=lambda name: (name != "ours", name))
        }
        for traffic in dict.fromkeys(row["traffic"] for row in loads)
    }
    draw_record(panels, path.with_suffix(""), result["slo"] * 1e3)


def _system(row: Mapping[str, Any]) -> str:
    """Its name without the setting."""
    name = str(row["system"]).partition(",")[0]
    return NAMES.get(name, name)


def _best(rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    """What is drawn of a system: of its settings the one with the most answers in time."""
    by: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by.setdefault(row["system"], []).append(row)
    best = max(by.values(), key=lambda own: statistics.mean(row["share"] for row in own))
    loads = sorted({row["load"] for row in best})
    return [Point.of(load, [row for row in best if row["load"] == load]) for load in loads]


def _name(system: str) -> str:
    """A system with its setting; ours has none."""
    return "ours" if system.startswith("ours,") else system.replace(" threads", "")


def _late(row: Mapping[str, Any]) -> str:
    """The 99th percentile; a dash where it never came."""
    return "–" if row["p99_ms"] is None else f"{row['p99_ms']:.0f}"
