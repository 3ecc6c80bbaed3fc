"""The files that keep a precision in a work folder: ``precision.json``, and ``rounded.npz`` beside it.

``refused-pairs.json`` holds one whose pairs the cases of a bundle refused.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgecompile.errors import CompileError
from edgecompile.files import write_json
from edgecompile.precision import FP32, Precision

_PRECISION_FILE = "precision.json"
_ROUNDED_FILE = "rounded.npz"
_REFUSED_FILE = "refused-pairs.json"


def save_precision(folder: Path, precision: Precision) -> None:
    """Leaves a precision in a work folder, for the stages that follow; raises OSError."""
    if precision.rounded is not None:
        precision.rounded.save(folder / _ROUNDED_FILE)
    write_json(folder / _PRECISION_FILE, precision.to_json())
    if precision.rounded is None:  # nothing reads the earlier ones any more
        (folder / _ROUNDED_FILE).unlink(missing_ok=True)


def refuse_pairs(folder: Path, precision: Precision) -> None:
    """Leaves a precision without its pairs in a work folder, also for later builds there; raises OSError."""
    write_json(folder / _REFUSED_FILE, precision.to_json())
    save_precision(folder, replace(precision, pairs=False))


def had_pairs_refused(folder: Path, precision: Precision) -> bool:
    """Whether :func:`refuse_pairs` got the same precision in this work folder."""
    with suppress(OSError, ValueError):
        left = json.loads((folder / _REFUSED_FILE).read_text(encoding="utf-8"))
        return precision.pairs and left == json.loads(json.dumps(precision.to_json()))
    return False


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
