"""The model through torch.compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from edgecompile.bench.worker import Eager, serve


def open_session(settings: Mapping[str, Any]) -> Eager:
    """Loads the model ``spec`` with ``batch``, ``load`` and ``threads``."""
    session = Eager(settings)
    session.module = torch.compile(session.module, dynamic=True, options={"freezing": True})
    return session


if __name__ == "__main__":
    serve(open_session)
