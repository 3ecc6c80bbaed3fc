"""Rows of caches in int8: blocks of a scale in bfloat16, little-endian, and up to 32 numbers divided by it."""

from typing import Optional

INT8 = "int8"
SCALE = 2
BLOCK = SCALE + 32


def row_width(size: int) -> Optional[int]:
    """The number of numbers in a row of ``size`` bytes; None: no row has so many bytes."""
    if 0 < size % BLOCK <= SCALE:
        return None
    return size - -(-size // BLOCK) * SCALE
