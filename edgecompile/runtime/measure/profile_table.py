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
    cells = " {:>9}" * len(reports) + " {:>7} {:>5} {:>5}"
    head = ["{} thr".format(report["threads"]) for report in reports]
    lines = ["{:<33}".format("ms") + cells.format(*head, "times", "joins", "idle")]
    times = [{row["kernel"]: row["ms"] for row in report["kernels"]} for report in reports]
    for row in last["kernels"]:
        spent = [each.get(row["kernel"], 0.0) for each in times]
        lines.append(row["kernel"].ljust(33) + cells.format(*_cells(spent, row)))
    for name in dict.fromkeys(name for each in times for name in each):
        if name not in times[-1]:
            spent = [each.get(name, 0.0) for each in times]
            lines.append(
                name.ljust(33) + cells.format(*map("{:.3f}".format, spent), "", "", "").rstrip()
            )
    whole = [report["run_ms"] for report in reports]
    lines.append("one run".ljust(33) + cells.format(*_cells(whole, last)))
    lines.append("joins and idle threads: with {} threads".format(last["threads"]))
    return lines


def _cells(spent: Sequence[float], row: Mapping[str, Any]) -> List[str]:
    gain = "{:.1f}".format(spent[0] / spent[-1]) if spent[-1] else ""
    return ["{:.3f}".format(ms) for ms in spent] + [
        gain,
        _count(row["joins"]),
        _percent(row["idle"]),
    ]


def _count(value: Optional[float]) -> str:
    return "" if value is None else "{:.0f}".format(value)


def _percent(value: Optional[float]) -> str:
    return "" if value is None else "{:.0f}%".format(100 * value)


def _rate(value: Optional[float], ceiling: float) -> str:
    return "" if value is None else "{:.1f} ({:.0f}%)".format(value, 100 * value / ceiling)
