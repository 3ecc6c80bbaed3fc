"""Reading drawings in tests."""

from __future__ import annotations

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def parse_drawing(svg: str) -> ElementTree.Element:
    """The root of a drawing that is fit for a page."""
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img" and root.get("aria-label")
    assert root.get("viewBox") and root.get("width") is None
    return root


def read_words(svg: str) -> list[str]:
    """The texts of a drawing."""
    return ["".join(item.itertext()).strip() for item in parse_drawing(svg).iter(f"{SVG}text")]


def count_uses(svg: str) -> int:
    """How many marks a drawing has: matplotlib defines a marker once and uses it."""
    return sum(1 for _ in parse_drawing(svg).iter(f"{SVG}use"))
