"""Files that commands write: whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from edgecompile.files import write_text


def write_json(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    """Writes a JSON document; see :func:`edgecompile.files.write_text`."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
