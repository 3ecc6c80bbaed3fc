"""The kinds of drawn inputs: repeated, in runs, in order, constant, far from zero, padding.

Real inputs are of these kinds. Independent values of a large range have no repeats, no ties and a mean of zero,
so that what depends on these would never be seen.
"""

from __future__ import annotations

ASCENDING, DESCENDING = "in ascending order", "in descending order"
FEW, RUNS, CONSTANT = "with few values", "in runs", "the same at all positions"
FAR, SPARSE = "far from zero", "mostly equal to the pad value"
MOSTLY_PADDING, PADDING = "mostly padding", "all padding"
#: Of whole numbers one value, of others a sixteenth of the differences: a norm of values that are all the same is
#: noise, eager's as well as ours.
STEADY = "nearly the same at all positions"
LOWEST, HIGHEST = "at their lowest", "at their highest"

#: What makes padding of real positions where whole numbers are concerned.
PADS = (MOSTLY_PADDING, PADDING)

#: The kinds that cases take in turn, "" for independent values. Their number is odd, so that what alternates
#: beside them, such as masks, meets all of them.
TURNS = (FEW, "", RUNS, FAR, "", ASCENDING, MOSTLY_PADDING, STEADY, PADDING)


def turn(number: int, *, padded: bool = False) -> str:
    """The kind of a case by its number; ``padded``: in a bucket that pads, where no kind of :data:`PADS` is.

    A model may take whole numbers that equal the pad value for padding, and a row of nothing else depends on
    the width.
    """
    kind = TURNS[number % len(TURNS)]
    return FEW if padded and kind in PADS else kind
