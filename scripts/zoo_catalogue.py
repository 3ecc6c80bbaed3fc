"""The zoo: every architecture by name, as a factory that edgecompile's loader takes.

edgecompile build scripts/zoo_catalogue.py:bert --lengths … --target …
"""

from __future__ import annotations

from collections.abc import Callable

from zoo_entry import Entry
from zoo_torch import TORCH_ENTRIES
from zoo_transformers import TRANSFORMERS_ENTRIES

from edgecompile.loaders.factory_specs import ModelSpec

__all__ = ["ENTRIES"]

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*TRANSFORMERS_ENTRIES, *TORCH_ENTRIES)}


def __getattr__(name: str) -> Callable[[], ModelSpec]:
    """The factory of that name (``zoo_catalogue.py:bert``)."""
    if name in ENTRIES:
        return ENTRIES[name].make
    raise AttributeError(f"the zoo has no {name}")
