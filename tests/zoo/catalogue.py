"""The zoo: every architecture by name, as a factory that edgecompile's loader takes.

PYTHONPATH=. edgecompile build tests/zoo/catalogue.py:bert --lengths … --target …
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from edgecompile.loaders.factory_specs import ModelSpec
from tests.zoo.entry import Entry
from tests.zoo.models.torch_entries import TORCH_ENTRIES
from tests.zoo.models.transformers_entries import TRANSFORMERS_ENTRIES

__all__ = ["ENTRIES", "in_order"]

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*TRANSFORMERS_ENTRIES, *TORCH_ENTRIES)}


def __getattr__(name: str) -> Callable[[], ModelSpec]:
    """The factory of that name (``catalogue.py:bert``)."""
    if name in ENTRIES:
        return ENTRIES[name].make
    raise AttributeError(f"the zoo has no {name}")


def in_order() -> list[str]:
    """The zoo's names so that what comes first is a sample of every group, as large as its share."""
    groups: dict[str, list[str]] = {}
    for name, entry in ENTRIES.items():
        groups.setdefault(entry.group, []).append(name)
    places = []
    for names in groups.values():
        # Neighbours are alike, so those of a group are mixed, always in the same way.
        names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
        places += [(number / len(names), name) for number, name in enumerate(names)]
    return [name for _, name in sorted(places)]
