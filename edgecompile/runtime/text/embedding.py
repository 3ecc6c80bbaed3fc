"""Embeddings of texts in fewer bytes: a byte or a bit for each number."""

from typing import TYPE_CHECKING, Any, Optional, Tuple

import numpy as np

from ..base.errors import InputError
from ..format.manifest.schema import Manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: As sentence-transformers names them: "int8" and "uint8" have a byte for each number, "binary" and "ubinary" a bit.
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
#: What no embedding of a text is called: numbers by word, or by class.
_OTHERS = ("sparse_embedding", "logits", "scores")
_STEPS = 255


def find_embeddings(manifest: Manifest) -> Tuple[str, ...]:
    """Names of the outputs that may be a text's embedding, [texts, size]; one, unless it can't be told."""
    names = [
        item.name
        for item in manifest.outputs
        if len(item.shape) == 2
        and isinstance(item.shape[1], int)
        and item.name not in manifest.labels
        and not item.name.endswith(_OTHERS)
    ]
    return tuple([name for name in names if "embedding" in name] or names)


def find_embedding(manifest: Manifest, precision: str) -> str:
    """The output that ``narrow`` is for.

    Raises:
        InputError: there is no such precision, no such output, or none whose ranges are known.
    """
    if precision not in PRECISIONS:
        message = "precision is {!r}, must be one of {}"
        raise InputError(message.format(precision, ", ".join(PRECISIONS)))
    names = find_embeddings(manifest)
    if len(names) != 1:
        message = "{}: the bundle has {} embeddings of a text, precision={!r} needs one"
        raise InputError(message.format(manifest.name, len(names) or "no", precision))
    if precision.endswith("int8") and names[0] not in manifest.ranges:
        raise InputError(
            "{}: the bundle doesn't know in which ranges the numbers of {} are, which {} needs".format(
                manifest.name, names[0], precision
            ),
            "build it from texts: their embeddings give the ranges; binary needs none",
        )
    return names[0]


def narrow(rows: Any, precision: str, ranges: "Optional[Tuple[Any, Any]]" = None) -> "NDArray[Any]":
    """Embeddings in a precision of ``PRECISIONS``.

    Bytes divide the range of each number into 255 steps; numbers outside of it become its ends. Bits say
    which numbers are over 0, eight a byte, the first one the highest; bits that fill the last byte are 0.
    The signed kinds are 128 less than the others.

    Args:
        rows: embeddings, [texts, size].
        precision: the precision.
        ranges: smallest and largest values of each number, [size] each; "binary" and "ubinary" need none.

    Returns:
        float32, int8 or uint8 [texts, size]; of bits [texts, size/8].

    Raises:
        InputError: a number is NaN or infinite, which bytes can't hold.
    """
    wide: NDArray[Any] = np.asarray(rows, np.float32)
    if precision == "float32":
        return wide
    if not np.isfinite(wide).all():
        raise InputError("an embedding holds NaN or infinities, which {} lacks".format(precision))
    codes: NDArray[Any]
    if precision.endswith("binary"):
        codes = np.packbits(wide > 0, axis=1)
    else:
        assert ranges is not None
        low, high = (np.asarray(ends, np.float64) for ends in ranges)
        step = (high - low) / _STEPS
        share = np.divide(wide - low, step, out=np.zeros(wide.shape), where=step > 0)
        codes = np.clip(np.rint(share), 0, _STEPS).astype(np.uint8)
    if precision.startswith("u"):
        return codes
    return (codes.astype(np.int16) - 128).astype(np.int8)
