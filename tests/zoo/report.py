"""The zoo's results: a line each, a page for people, a dated record."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["MARK", "counted", "read_results", "summary_line", "table", "write_reports"]

#: Share of the architectures which eager runs that has to pass.
MARK = 0.97

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_GROUPS = (
    *("text", "decoder", "encoder-decoder", "mixture of experts", "vision", "audio"),
    *("time series", "recurrent", "points", "plain"),
)

Result = Mapping[str, Any]

_PLACES = re.compile(r"(?:/[\w.+-]+)+/(?:site-packages|tests/zoo)/((?:[\w.-]+/)*[\w.-]+)")


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """The results that lie in a folder, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def counted(result: Result) -> bool:
    """Whether eager runs it, so that the mark counts it."""
    return result.get("stage") != "load" or result["status"] == "ok"


def summary_line(result: Result) -> str:
    """One line for the log."""
    facts = result.get("facts", {})
    error = facts.get("error_of_scale")
    parts = [
        f"{result['name']:26} {result['status']:8} {result.get('stage', '?'):9}",
        f"{facts.get('mode', ''):6}{facts.get('rung', ''):16}",
        "" if error is None else f"{error:.1e} ",
        str(result.get("reason", "")).replace("\n", " ")[:160],
    ]
    return " ".join(part for part in parts if part.strip())


def write_reports(
    results: Mapping[str, Result], options: argparse.Namespace, absent: Sequence[str] = ()
) -> tuple[int, int]:
    """Writes what ``options`` ask for; returns how many passed, of how many that count.

    ``absent`` are the architectures that weren't run: the page says so.
    """
    judged = [result for result in results.values() if counted(result)]
    passed = sum(result["status"] == "ok" for result in judged)
    record = _record(results, passed, len(judged))
    # Where code lies on this machine tells nobody anything.
    text = _PLACES.sub(r"\1", _dump(record))
    if options.json:
        options.json.write_text(text)
    if options.docs:
        day = datetime.date.today().isoformat()
        file = _DOCS / "benchmarks" / f"{day}-zoo.json"
        file.write_text(text)
        page = _page(results, passed, len(judged), file.name, absent)
        (_DOCS / "zoo.md").write_text(page)
    return passed, len(judged)


def _dump(record: Mapping[str, Any]) -> str:
    """JSON with a line for each model."""
    rest = json.dumps({name: value for name, value in record.items() if name != "models"})
    rows = (f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in record["models"].items())
    return rest[:-1] + ',\n "models": {\n' + ",\n".join(rows) + "\n }}\n"


def _record(results: Mapping[str, Result], passed: int, total: int) -> dict[str, Any]:
    import torch
    import transformers

    keys = (
        *("group", "status", "stage", "reason", "facts", "seconds", "wall_s", "peak_mb", "upto"),
        "commit",
    )
    return {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "passed": passed,
        "counted": total,
        "models": {
            name: {
                key: {k: v for k, v in result[key].items() if k not in ("traceback", "details")}
                if key == "facts"
                else result[key]
                for key in keys
                if key in result
            }
            for name, result in results.items()
        },
    }


def _page(
    results: Mapping[str, Result], passed: int, total: int, record: str, absent: Sequence[str]
) -> str:
    import torch
    import transformers

    share = 100 * passed / max(1, total)
    errors = [r["facts"]["error_of_scale"] for r in results.values() if _error(r) is not None]
    padded = sum(r.get("facts", {}).get("mode") == "pad" for r in results.values())
    rungs = Counter(
        r["facts"]["rung"]
        for r in results.values()
        if r["status"] == "ok" and r.get("facts", {}).get("mode") == "exact"
    )
    lines = [
        "# The zoo",
        "",
        f"The zoo has {total} small architectures of transformers {transformers.__version__} and of "
        f"plain torch {torch.__version__.partition('+')[0]}, with random weights. **{passed} "
        f"({share:.1f} %)** pass: they are loaded, exported, compiled and verified, and give eager's "
        "answers in a process without torch. Most names are the `model_type` of a config.json. "
        "[status.md](status.md#checkpoints-with-their-real-weights) has checkpoints with real weights.",
        "",
        "`scripts/zoo` makes this page; `scripts/zoo --only NAME` tries one architecture. Each is "
        "compiled in fp32 for this host's best variant, and compared with eager at five sizes: "
        "lengths of 1 to 64, or batches of 1 to 8. With a mask it also runs with padding. An error "
        "may be 1e-5 of the output's scale, and eight times eager's own error in float32 more.",
        "",
        f"The largest error of the models that pass is {max(errors, default=0.0):.1e} of the output's "
        f"scale. {padded} run in padded programs, since none of their exports takes every length. The "
        "others by export strategy: "
        + ", ".join(f"{name} {count}" for name, count in rungs.most_common())
        + ". "
        f"Every figure, with its commit, is in [benchmarks/{record}](benchmarks/{record}).",
        "",
        *_refusals(results),
    ]
    if absent:
        lines += [
            "",
            f"**{len(absent)} more are in the catalogue and were not run for this page:** "
            + ", ".join(absent)
            + ".",
        ]
    for group in _GROUPS:
        rows = [r for r in results.values() if r["group"] == group]
        if rows:
            lines += ["", f"## {group.capitalize()}", "", *_group(rows)]
    return "\n".join(lines) + "\n"


def _group(rows: list[Result]) -> list[str]:
    """The names of those that one program serves at every size, and a table of the others."""
    plain = [row for row in rows if row["status"] == "ok" and _serves_all(row)]
    worst = max((error for row in rows if (error := _error(row)) is not None), default=0.0)
    passed = sum(row["status"] == "ok" for row in rows)
    lines = [
        f"{passed} of {len(rows)} pass. The largest error is {worst:.1e} of the output's scale."
    ]
    if plain:
        names = ", ".join(sorted(row["name"] for row in plain))
        lines += ["", f"One program serves every size of {len(plain)}: {names}."]
    others = [row for row in rows if row not in plain]
    return [*lines, "", *table(others)] if others else lines


def _serves_all(row: Result) -> bool:
    facts = row.get("facts", {})
    return facts.get("mode") == "exact" and facts.get("served") == facts.get("allowed")


def _refusals(results: Mapping[str, Result]) -> list[str]:
    bad = [r for r in results.values() if counted(r) and r["status"] != "ok"]
    if not bad:
        return []
    return [
        "## Architectures that fail, and why",
        "",
        *(f"- **{r['name']}**: {_reason(r)}" for r in bad),
    ]


def table(rows: list[Result]) -> list[str]:
    """A table of results; lengths are those that are served."""
    lines = ["| model | result | form | export | lengths | error |", "|---|---|---|---|---|---:|"]
    for row in rows:
        facts = row.get("facts", {})
        served, allowed = facts.get("served"), facts.get("allowed")
        span = "" if not served else f"{served[0]}–{served[1]}"
        if served and served != allowed:
            span += f" of {allowed[0]}–{allowed[1]}"
        error = _error(row)
        cells = [
            row["name"],
            "passed" if row["status"] == "ok" else f"{row['status']} ({row.get('stage', 'start')})",
            facts.get("mode", ""),
            facts.get("rung", ""),
            span,
            "" if error is None else f"{error:.0e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _error(row: Result) -> float | None:
    error = row.get("facts", {}).get("error_of_scale")
    return float(error) if error is not None and row["status"] == "ok" else None


def _reason(row: Result) -> str:
    text = " ".join(str(row.get("reason", "")).split())
    text = _PLACES.sub(r"\1", text)
    return text if len(text) < 400 else text[:400] + " …"
