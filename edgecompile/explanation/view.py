"""An explanation as rows of text, which the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from edgecompile.explanation.report import Explanation
from edgecompile.models.source_lines import place_of_text
from edgecompile.units import format_bytes, format_count, format_duration, format_share

__all__ = ["TABLES", "TableRows", "bucket_rows", "explanation_tables", "format_flops"]

_MOST_ROWS = 24
_MOST_CALLS = 8


@dataclass(frozen=True)
class TableRows:
    """A table: its title, headings, rows, how many columns hold words, which rows are bad."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    bad: tuple[int, ...] = ()
    caption: str = ""


def format_flops(flops: float) -> str:
    """``1.23 GFLOP``."""
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops:.0f} FLOP"


def explanation_tables(found: Explanation) -> tuple[TableRows, ...]:
    """All tables that have rows, in the order in which people read them."""
    made = (maker(found) for maker in TABLES)
    return tuple(table for table in made if table.rows)


def _eager(found: Explanation) -> TableRows:
    rows: list[tuple[str, str]] = []
    calls: object = None
    for item in found.eager:
        if calls is not None and item.calls != calls:
            rows += _calls(calls)
        rows.append((_sizes(item.sizes) or "while loading", item.text))
        calls = item.calls
    rows += _calls(calls)
    caption = "below: the calls of the model's code that led there, the innermost last"
    return TableRows("Eager fails", ("at", "what"), tuple(rows), 2, caption=caption)


def _calls(places: object) -> list[tuple[str, str]]:
    assert isinstance(places, tuple) or places is None
    return [("", str(place)) for place in (places or ())[-_MOST_CALLS:]]


def _rungs(found: Explanation) -> TableRows:
    rows = []
    tried = [rung for rung in found.rungs if rung.outcome != "not tried"]
    for rung in tried:
        text = rung.text
        if rung.outcome == "accepted":
            text = f"agrees with eager at {len(rung.right)} sizes, to {rung.max_error or 0:.1e}"
        rows.append((rung.rung, rung.outcome, text, _short(rung.place)))
    bad = tuple(i for i, r in enumerate(tried) if r.outcome in ("refused", "wrong"))
    left = [rung.rung for rung in found.rungs if rung.outcome == "not tried"]
    caption = f"not tried, since an earlier one was accepted: {', '.join(left)}" if left else ""
    columns = ("way", "outcome", "what", "line")
    return TableRows("Ways to export", columns, tuple(rows), 4, bad=bad, caption=caption)


def _conditions(found: Explanation) -> TableRows:
    groups: dict[tuple[str, str], list[str]] = {}
    for rung in found.rungs:
        for item in rung.conditions:
            groups.setdefault((item.text, _short(item.place)), []).append(rung.rung)
    merged: dict[tuple[str, str], list[str]] = {}
    # Strict tracing doesn't tell lines: its conditions join the same ones that have a line.
    for (text, place), rungs in sorted(groups.items(), key=lambda item: item[0][1] == ""):
        known = next((key for key in merged if key[0] == text), (text, place))
        merged.setdefault(known, []).extend(rungs)
    rows = [
        (text, place, ", ".join(dict.fromkeys(rungs))) for (text, place), rungs in merged.items()
    ]
    return TableRows(
        "What tracing demanded of the sizes",
        ("condition", "line", "ways"),
        tuple(rows[:_MOST_ROWS]),
        3,
        caption=_left(rows),
    )


def _specialised(found: Explanation) -> TableRows:
    rows = tuple(
        (f"{item.axis} = {item.size}", str(item.place or "–"), ", ".join(item.rungs))
        for item in found.specialisations
    )
    return TableRows("Axes that became constants", ("axis", "line", "ways"), rows, 3)


def _breaks(found: Explanation) -> TableRows:
    rows = tuple((item.reason, str(item.place or "–")) for item in found.breaks)
    return TableRows("Graph breaks", ("reason", "line"), rows, 2)


def _differences(found: Explanation) -> TableRows:
    pair = found.compared
    title = "What depends on the length"
    rows = tuple((item.text, str(item.place or "–")) for item in found.differences)
    caption = _left(rows)
    if pair is not None:
        title += f": the graphs of {pair[0]} and {pair[1]}"
        count = found.follow
        follow = "1 number merely follows" if count == 1 else f"{count} numbers merely follow"
        caption = f"{follow} the length. {caption}".strip()
    return TableRows(title, ("difference", "line"), rows[:_MOST_ROWS], 2, caption=caption)


def _kernels(found: Explanation) -> TableRows:
    words = {"own": "ours", "generic": "generic", "missing": "MISSING"}
    rows = tuple(
        (
            use.kernel,
            words[use.kind],
            _modules(use.modules),
            _places(use.places),
            format_count(use.calls),
            format_flops(use.flops) if use.flops else "–",
        )
        for use in found.kernels
    )
    bad = tuple(i for i, use in enumerate(found.kernels) if use.kind == "missing")
    caption = ""
    if found.generated is not None:
        caption = f"beside {found.generated} kernels that Inductor generates"
    columns = ("kernel", "", "modules", "lines", "calls", "work")
    return TableRows("Kernels", columns, rows, 4, bad=bad, caption=caption)


def _code(found: Explanation) -> TableRows:
    failure = found.code_failure
    rows = () if failure is None else ((failure.text, str(failure.place or "–")),)
    title = "Code generation fails"
    return TableRows(title, ("what", "line"), rows, 2, bad=tuple(range(len(rows))))


def _kept(found: Explanation) -> TableRows:
    rows = tuple(
        (item.operator, item.reason, item.module or "(model)", _short(item.place))
        for item in found.kept
    )
    return TableRows(
        "Not given to our kernels",
        ("operator", "why", "module", "line"),
        rows[:_MOST_ROWS],
        4,
        caption=_left(rows),
    )


def bucket_rows(found: Explanation) -> TableRows:
    """Figures by bucket."""
    rows = tuple(
        (
            "–" if b.hi is None else f"{b.lo}–{b.hi}",
            format_flops(b.flops),
            format_bytes(b.weight_bytes),
            format_bytes(b.moved),
            format_bytes(b.peak),
            format_bytes(b.peak_unfused),
            f"{b.intensity:.1f}",
            b.limit or "–",
            "–" if b.least_ms is None else format_duration(b.least_ms / 1e3),
        )
        for b in found.buckets
    )
    columns = (
        *("lengths", "work", "weights", "moved", "peak", "peak, unfused", "flop/byte"),
        *("limit", "least time"),
    )
    caption = (
        "at the longest length of each, batch and other axes at their least. Moved and peak as if "
        "generated code fused everything between two kernels; peak is of activations, beside the "
        "weights. Least time: what the figures of the target's profile allow at best."
    )
    return TableRows("Figures of one run", columns, rows, 1, caption=caption)


def _by_module(found: Explanation) -> TableRows:
    rows = tuple(
        (
            use.module or "(model)",
            format_count(use.count),
            format_flops(use.flops) if use.flops else "–",
            format_bytes(use.moved) if use.moved else "–",
            format_share(use.share) if use.share else "–",
        )
        for use in found.modules
    )
    at = found.buckets[-1].hi if found.buckets else None
    title = "By module" + (f", at length {at}" if at is not None else "")
    columns = ("module", "operators", "work", "moved", "share of the least time")
    return TableRows(title, columns, rows[:_MOST_ROWS], 1, caption=_left(rows))


def _operators(found: Explanation) -> TableRows:
    rows = tuple(
        (use.operator, format_count(use.count), _modules(use.modules)) for use in found.operators
    )
    rows = tuple((name, where, count) for name, count, where in rows)
    return TableRows(
        "Operators", ("operator", "modules", "count"), rows[:_MOST_ROWS], 2, caption=_left(rows)
    )


def _peak(found: Explanation) -> TableRows:
    rows = tuple(
        (
            item.operator,
            item.module or "(model)",
            _short(item.place),
            " × ".join(map(str, item.shape)) or "scalar",
            format_bytes(item.size),
        )
        for item in found.peak_tensors
    )
    columns = ("made by", "module", "line", "shape", "size")
    return TableRows("What lives when memory is highest", columns, rows, 3)


TABLES = (
    _eager,
    _rungs,
    _specialised,
    _conditions,
    _breaks,
    _differences,
    _code,
    _kernels,
    _kept,
    bucket_rows,
    _by_module,
    _operators,
    _peak,
)


def _left(rows: Iterable[object]) -> str:
    more = len(list(rows)) - _MOST_ROWS
    return f"{more} more in --json" if more > 0 else ""


def _sizes(sizes: object) -> str:
    assert hasattr(sizes, "items")
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def _short(place: object) -> str:
    return "" if place is None else str(getattr(place, "short", place))


def _modules(names: tuple[str, ...]) -> str:
    shown = [name or "(model)" for name in names[:2]]
    return ", ".join(shown) + (f" +{len(names) - 2}" if len(names) > 2 else "")


def _places(texts: tuple[str, ...]) -> str:
    places = [place_of_text(text) for text in texts]
    shown = [f"{PurePath(p.file).name}:{p.line}" for p in places if p is not None]
    return ", ".join(shown[:2]) + (f" +{len(shown) - 2}" if len(shown) > 2 else "")
