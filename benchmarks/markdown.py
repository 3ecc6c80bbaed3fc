"""The Markdown of benchmark records: lists, tables and facts on one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def listing(values: Mapping[str, object]) -> str:
    """Facts on one line: name and value of each."""
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items())


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return "(" + listing(value) + ")"
    if isinstance(value, (list, tuple)):
        return " ".join(str(item) for item in value)
    return str(value)


def bullets(lines: Iterable[str]) -> str:
    """One item per line."""
    return "\n".join(f"- {line}" for line in lines)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells; all columns but the first are numbers."""
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *rows))
