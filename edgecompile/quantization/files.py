"""The files that keep a precision in a work folder: ``precision.json``, and ``rounded.npz`` beside it."""

from __future__ import annotations

import json
from pathlib import Path

from edgecompile.errors import CompileError
from edgecompile.files import write_json
from edgecompile.precision import FP32, Precision

_PRECISION_FILE = "precision.json"
_ROUNDED_FILE = "rounded.npz"


def save_precision(folder: Path, precision: Precision) -> None:
    """Leaves a precision in a work folder, for the stages that follow; raises OSError."""
    if precision.rounded is not None:
        precision.rounded.save(folder / _ROUNDED_FILE)
    write_json(folder / _PRECISION_FILE, precision.to_json())
    if precision.rounded is None:  # nothing reads the earlier ones any more
        (folder / _ROUNDED_FILE).unlink(missing_ok=True)


def load_precision(folder: Path) -> Precision:
    """Reads the file of :func:`save_precision`; fp32 where there is none.

    Raises:
        CompileError: the files hold something else.
    """
    path = folder / _PRECISION_FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return FP32
    except (OSError, ValueError) as error:
        raise CompileError(f"{path} can't be read: {error}", hint="plan again") from error
    if not isinstance(value, dict):
        raise CompileError(f"{path} doesn't hold a precision", hint="plan again")
    digest = value.get("rounded")
    if digest is None:
        return Precision.from_json(value)
    from edgecompile.quantization.gptq import RoundedWeights  # brings torch along

    return Precision.from_json(value, RoundedWeights.load(folder / _ROUNDED_FILE, str(digest)))
