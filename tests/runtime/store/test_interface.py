"""interface: which versions can take the place of which."""

from __future__ import annotations

from typing import Any

import pytest

from edgecompile.runtime.base.errors import BundleError
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.store.interface import check_interface


def changed(manifest: Manifest, kind: str, **changes: Any) -> Manifest:
    """The manifest with another last input, or first output."""
    items = list(getattr(manifest, kind))
    place = -1 if kind == "inputs" else 0
    items[place] = items[place]._replace(**changes)
    return manifest._replace(**{kind: tuple(items)})


DEFAULT = ("inputs", {"default": 1}, {"default": None}, "wants an input attention_mask")
FIXED = (
    "inputs",
    {"shape": ("batch", "length")},
    {"shape": ("batch", 7)},
    r"input attention_mask is int64\[batch, 7\], was int64\[batch, length\]",
)
OPEN = (
    "outputs",
    {"shape": ("batch", 4)},
    {"shape": ("batch", None)},
    r"output embedding is float32\[batch, None\], was float32\[batch, 4\]",
)


@pytest.mark.parametrize(("kind", "old", "new", "text"), [DEFAULT, FIXED, OPEN])
def test_a_version_takes_all_that_the_old_one_took_and_gives_no_other_sizes(
    manifest: Manifest, kind: str, old: dict[str, Any], new: dict[str, Any], text: str
) -> None:
    before, after = changed(manifest, kind, **old), changed(manifest, kind, **new)
    with pytest.raises(BundleError, match=text):
        check_interface(before, after, "new.ecb")
    check_interface(after, before, "new.ecb")


def test_another_name_of_an_axis_changes_nothing(manifest: Manifest) -> None:
    for kind in ("inputs", "outputs"):
        size = "length" if kind == "inputs" else 4
        check_interface(manifest, changed(manifest, kind, shape=("rows", size)), "new.ecb")
