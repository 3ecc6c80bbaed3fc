"""Numbers with their units, the way people read them. Sizes are decimal: 1 MB = 10**6 bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_QUANTITY = re.compile(r"\s*(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)\s*(?P<unit>[A-Za-z]*)\s*")
_BYTES = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("i", 1024), ("ib", 1024))
}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def format_bytes(size: float) -> str:
    """``27.3 MB``: three significant digits, exact below one kilobyte."""
    if size < 1000:
        return f"{int(size)} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000.0
        # 999.95 would print as 1000 of the smaller unit
        if value < 999.5 or unit == "TB":
            return f"{_three_digits(value)} {unit}"
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """``850 µs``, ``3.42 ms``, ``12.3 s``, ``3 min 12 s``, ``1 h 02 min``."""
    if not math.isfinite(seconds):
        return "–"
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{_three_digits(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_ms(milliseconds: float | None) -> str:
    """``3.42``: milliseconds without the unit, for a column whose heading names it."""
    if milliseconds is None or not math.isfinite(milliseconds):
        return "–"
    return _three_digits(milliseconds)


def format_count(count: float) -> str:
    """``1,234,567``."""
    return f"{count:,.0f}"


def format_share(share: float | None) -> str:
    """``12.3 %`` of a share between 0 and 1; never rounds something to nothing or to everything."""
    if share is None or not math.isfinite(share):
        return "–"
    if 0.0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1.0:
        return ">99.9 %"
    return f"{100.0 * share:.1f} %"


def sentence(text: str) -> str:
    """A remark with a capital and a full stop; what begins with a name is left as it begins."""
    text = text.strip()
    first = re.match(r"[a-z]+(?=[ ,:;']|$)", text)
    if first is not None:
        text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".!?…:" else f"{text}."


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.9995 or value == 0 else f"{value:.3f}"


def parse_bytes(text: str) -> int:
    """The bytes that ``120MB``, ``1.5 GB``, ``64MiB`` or ``4096`` mean.

    Raises:
        ValueError: it is no size.
    """
    return round(_parse(text, _BYTES, "a size such as 120MB, 1.5GB or 64MiB"))


def parse_duration(text: str) -> float:
    """The seconds that ``90``, ``90s``, ``10min``, ``1.5h`` or ``250ms`` mean.

    Raises:
        ValueError: it is no duration.
    """
    return _parse(text, _SECONDS, "a duration such as 90s, 10min or 1.5h")


def _parse(text: str, units: Mapping[str, float], what: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match["unit"].lower() not in units:
        raise ValueError(f"'{text}' isn't {what}")
    return float(match["number"]) * units[match["unit"].lower()]
