"""Tables of profiles for people: by kernel, and by kernel and number of threads."""

from typing import Any, List, Mapping, Optional, Sequence

_HEAD = "{:<33} {:>8} {:>5} {:>5} {:>5} {:>4} {:>13} {:>12}"


def format_profile(report: Mapping[str, Any]) -> List[str]:
    """The table of one profile, a line each.

    Args:
        report: Result of ``profile_bundle``.
    """
    ceilings = report["ceilings"]
    lines = [_HEAD.format("kernel", "ms", "share", "calls", "joins", "idle", "GFLOP/s", "GB/s")]
    for row in report["kernels"]:
        lines.append(
            _HEAD.format(
                row["kernel"],
                "{:.3f}".format(row["ms"]),
                _percent(row["share"]),
                _count(row["calls"]),
                _count(row["joins"]),
                _percent(row["idle"]),
                _rate(row["gflops"], ceilings["gflops"]),
                _rate(row["gb_per_s"], ceilings["gb_per_s"]),
            )
        )
    text = "one run {:.3f} ms; {} threads, {:.0f} joins, {} idle; at most {:.0f} GFLOP/s (float32) and {:.1f} GB/s"
    figures = (report["joins"], _percent(report["idle"]), ceilings["gflops"], ceilings["gb_per_s"])
    lines.append(text.format(report["run_ms"], report["threads"], *figures))
    return lines


def format_scaling(reports: Sequence[Mapping[str, Any]]) -> List[str]:
    """The table of several profiles of one bundle: a kernel's time with each number of threads.

    Args:
        reports: Results of ``profile_bundle``.
    """
    reports = sorted(reports, key=lambda report: report["threads"])
    last = reports[-1]
    form = "{:<33}" + " {:>9}" * len(reports) + " {:>7} {:>5} {:>5}"

    def line(name: str, spent: Sequence[float], row: Mapping[str, Any]) -> str:
        gain = "{:.1f}".format(spent[0] / spent[-1]) if spent[-1] else ""
        figures = (gain, _count(row.get("joins")), _percent(row.get("idle")))
        return form.format(name, *map("{:.3f}".format, spent), *figures).rstrip()

    counts = ["{} thr".format(report["threads"]) for report in reports]
    lines = [form.format("ms", *counts, "times", "joins", "idle")]
    tables = [{row["kernel"]: row for row in report["kernels"]} for report in reports]
    # By the last one's times; then those that it hasn't.
    for name in dict.fromkeys(name for table in reversed(tables) for name in table):
        spent = [table[name]["ms"] if name in table else 0.0 for table in tables]
        lines.append(line(name, spent, tables[-1].get(name, {})))
    lines.append(line("one run", [report["run_ms"] for report in reports], last))
    lines.append("joins and idle threads: with {} threads".format(last["threads"]))
    return lines


def _count(value: Optional[float]) -> str:
    return "" if value is None else "{:.0f}".format(value)


def _percent(value: Optional[float]) -> str:
    return "" if value is None else "{:.0f}%".format(100 * value)


def _rate(value: Optional[float], ceiling: float) -> str:
    return "" if value is None else "{:.1f} ({:.0f}%)".format(value, 100 * value / ceiling)
