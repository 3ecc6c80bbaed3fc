"""sums: sizes that follow from axes."""

from __future__ import annotations

import copy
import json

import pytest

from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.sums import (
    axes_of,
    find_givers,
    parse_sum,
    size_of,
    size_span,
    take_sizes,
)
from tests.runtime.bundles import DOCUMENT


@pytest.mark.parametrize(
    ("text", "written", "value"),
    [
        ("length", "length", 5),
        ("2*length", "2*length", 10),
        ("past+length", "past+length", 12),
        ("length-1", "length-1", 4),
        ("2*length+1", "2*length+1", 11),
        ("past-length", "past-length", 2),
        ("-length+9", "-length+9", 4),
        ("length+length", "2*length", 10),
        ("+length+0", "length", 5),
        ("3+length-1", "length+2", 7),
    ],
)
def test_sums_are_read_and_written(text: str, written: str, value: int) -> None:
    found = parse_sum(text)
    assert found is not None and str(found) == written and parse_sum(written) == found
    assert size_of(text, {"length": 5, "past": 7}) == value


@pytest.mark.parametrize(
    "text",
    ["", "3", "length-length", "0*length", "0*foo+length", "foo+length-foo", "2*", "*2", "length+", "length++1", "a b", "a.b", "2*a*b",
     "a/2", "(a)", "9999999*a", "a+9999999", "12345678*a", "a+" * 200 + "a", "ä"],
)  # fmt: skip
def test_what_is_no_sum(text: str) -> None:
    assert parse_sum(text) is None


def test_a_span_takes_the_far_end_of_what_is_subtracted() -> None:
    extents = {"length": (2, 9), "past": (0, 100)}
    assert size_span("past-length", extents) == (-9, 98)
    assert size_span("length", extents) == (2, 9)
    with pytest.raises(KeyError):
        size_span("width", extents)


def test_an_axis_whose_name_reads_like_a_sum_is_an_axis() -> None:
    assert size_of("length-1", {"length-1": 8, "length": 5}) == 8
    assert axes_of("length-1", ["length-1"]) == ("length-1",)
    assert axes_of("length-1", ["length"]) == ("length",)
    assert axes_of(7, ()) == () == axes_of(None, ())


def test_what_is_padded_beside_such_an_axis_is_not_what_follows() -> None:
    """As the C loader has it: the string names the axis, and nothing pads that one."""
    document = copy.deepcopy(DOCUMENT)
    document["axes"]["length-1"] = {"lo": 3, "hi": 3}
    for bucket in document["buckets"]:
        bucket["axes"]["length-1"] = {"lo": 3, "hi": 3, "hint": 3}
    document["inputs"].append(
        {"name": "bias", "dtype": "float32", "shape": ["length-1"], "pad": None, "bounds": None}
    )

    def refusal() -> str:  # the document lists no files
        with pytest.raises(EdgecompileError) as caught:
            parse_manifest(json.dumps(document).encode())
        return str(caught.value)

    assert "bucket-pad" not in refusal()
    for axes in (document["axes"], *[bucket["axes"] for bucket in document["buckets"]]):
        del axes["length-1"]
    document["buckets"][0]["axes"]["length"]["lo"] = document["axes"]["length"]["lo"] = 2
    assert "the input 'bias' [bucket-pad]" in refusal()


def test_sums_give_the_sizes_of_axes() -> None:
    dims = ["batch", 4, "3*rows+length", "2*length", "5-rest", "a+b", "not a sum", "length+1"]
    givers = find_givers(dims, ["batch"])
    assert givers == [("length", "2*length"), ("rows", "3*rows+length"), ("rest", "5-rest")]
    sizes = {"batch": 1, "2*length": 8, "3*rows+length": 10, "5-rest": 2}
    assert take_sizes(sizes, givers) == []
    assert (sizes["length"], sizes["rows"], sizes["rest"]) == (4, 2, 3)
    for changed in ({"2*length": 7}, {"3*rows+length": 9}, {"5-rest": 6}, {"3*rows+length": 1}):
        given = {"batch": 1, "2*length": 8, "3*rows+length": 10, "5-rest": 2, **changed}
        assert take_sizes(given, givers) == list(changed)
    assert take_sizes({"3*rows+length": 10}, givers) == []  # the length has to be known first
