"""Numbers as people read them, at the places where the unit or the digits change."""

from __future__ import annotations

import pytest

from edgecompile.units import (
    format_bytes,
    format_count,
    format_duration,
    format_ms,
    format_share,
    parse_bytes,
    parse_duration,
    sentence,
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the weights hold no pooler", "The weights hold no pooler."),
        ("Done.", "Done."),
        ("config.json names it", "config.json names it."),
        ("int8: 3 of 4 layers", "int8: 3 of 4 layers."),
        ("eager: it fails!", "Eager: it fails!"),
        ("x86-64-v4 built, not run", "x86-64-v4 built, not run."),
        ("", ""),
    ],
)
def test_remarks_are_sentences(text: str, said: str) -> None:
    assert sentence(text) == said


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (27_345_678, "27.3 MB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (4_000_000_000, "4.00 GB"),
        (2_500_000_000_000_000, "2500 TB"),
    ],
)
def test_bytes(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00085, "850 µs"),
        (0.00342, "3.42 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (12.34, "12.3 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (192.4, "3 min 12 s"),
        (3599.6, "1 h 00 min"),
        (3725, "1 h 02 min"),
        (float("nan"), "–"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (0.0131, "0.013"),
        (0.9994, "0.999"),
        (0.9996, "1.00"),
        (3.419, "3.42"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234, "1234"),
    ],
)
def test_milliseconds(value: float | None, text: str) -> None:
    assert format_ms(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0 %"),
        (0.0001, "<0.1 %"),
        (0.1234, "12.3 %"),
        (0.9999, ">99.9 %"),
        (1.0, "100.0 %"),
        (1.7, "170.0 %"),
        (None, "–"),
    ],
)
def test_shares(share: float | None, text: str) -> None:
    assert format_share(share) == text


def test_counts() -> None:
    assert format_count(1234567) == "1,234,567"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("120MB", 120_000_000), ("1.5 gb", 1_500_000_000), ("2KiB", 2048)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("10min", 600.0), ("1.5h", 5400.0), ("250 ms", 0.25)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "nan", "1e3", "12 parsecs", "1,5GB"])
def test_what_is_neither_is_refused(text: str) -> None:
    for parse in (parse_bytes, parse_duration):
        with pytest.raises(ValueError, match="isn't a"):
            parse(text)
