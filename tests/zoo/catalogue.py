"""The zoo: every architecture by name, as a factory that edgecompile's loader takes.

PYTHONPATH=. edgecompile build tests/zoo/catalogue.py:bert --lengths … --target …
"""

from __future__ import annotations

from collections.abc import Callable

from edgecompile.loaders.factory_specs import ModelSpec
from tests.zoo.entry import Entry
from tests.zoo.torch_entries import TORCH_ENTRIES
from tests.zoo.transformers_entries import TRANSFORMERS_ENTRIES

__all__ = ["ENTRIES"]

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*TRANSFORMERS_ENTRIES, *TORCH_ENTRIES)}


def __getattr__(name: str) -> Callable[[], ModelSpec]:
    """The factory of that name (``catalogue.py:bert``)."""
    if name in ENTRIES:
        return ENTRIES[name].make
    raise AttributeError(f"the zoo has no {name}")
