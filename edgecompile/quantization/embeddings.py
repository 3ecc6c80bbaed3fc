"""What embeddings of texts lose as bytes and as bits, and the ranges that bytes divide.

Both come from the embeddings that the model itself gives to the user's texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.models.arrays import to_numpy, to_tensors
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import SampleTexts, text_samples
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.text.embedding import find_embeddings, narrow

#: Texts that are run, and the fewest different ones that tell anything.
MOST_TEXTS, LEAST_TEXTS = 256, 32
#: Nearest texts that are compared, of each text.
NEAREST = 10
_PRECISIONS = ("int8", "binary")
Rows = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Likeness:
    """Embeddings of a precision beside the model's own, by the cosines of all pairs of texts.

    Attributes:
        nearest: mean number of a text's nearest :data:`NEAREST` texts that both find.
        correlation: Spearman's correlation of the ranks of all pairs.
    """

    nearest: float
    correlation: float


@dataclass(frozen=True)
class EmbeddingRanges:
    """The ranges of an embedding's numbers, and how like narrow embeddings are.

    Attributes:
        output: the name of the embedding.
        low, high: the ends of the range of each number.
        likeness: the comparison by precision.
        texts: the number of texts.
        source: their file.
    """

    output: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    likeness: Mapping[str, Likeness]
    texts: int
    source: str

    def describe(self) -> str:
        """The figures, in a sentence."""
        parts = [
            f"as {name} finds {item.nearest:.1f} of the {NEAREST} nearest texts "
            f"(rank correlation {item.correlation:.3f})"
            for name, item in self.likeness.items()
        ]
        return f"{self.output} {', '.join(parts)}, by {self.texts} texts of {self.source}"

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values, without the ranges."""
        figures = {
            name: {"nearest": round(item.nearest, 3), "correlation": round(item.correlation, 5)}
            for name, item in self.likeness.items()
        }
        return {"output": self.output, "texts": self.texts, **figures}


def find_ranges(
    model: LoadedModel, manifest: Manifest, texts: SampleTexts | None, longest: int
) -> EmbeddingRanges | None:
    """Runs the model on texts and measures what it gives.

    Args:
        model: the model.
        manifest: the manifest of its bundle.
        texts: the user's texts; None: there are none.
        longest: tokens of the longest text that is run.

    Returns:
        None where the model has no embedding of a text that its builder named so, or there are fewer than
        :data:`LEAST_TEXTS` different texts.

    Raises:
        As :func:`edgecompile.models.samples.text_samples`.
        ModelError: the model fails on a text.
    """
    names = [name for name in find_embeddings(manifest) if "embedding" in name]
    if len(names) != 1 or model.generation is not None or texts is None:
        return None
    samples = text_samples(model, texts, longest, MOST_TEXTS)
    different = {} if samples is None else {_key(inputs): inputs for inputs in samples.inputs}
    if len(different) < LEAST_TEXTS:
        return None
    runs = [to_numpy(model.run(to_tensors(inputs)))[names[0]] for inputs in different.values()]
    rows = np.stack([np.asarray(run[0], np.float32) for run in runs])
    if not np.isfinite(rows).all():
        return None
    low, high = choose_ends(rows)
    return EmbeddingRanges(
        names[0],
        low,
        high,
        {name: compare(rows, vectors_of(rows, name, (low, high))) for name in _PRECISIONS},
        len(rows),
        texts.file.name,
    )


def choose_ends(rows: Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The ends of ranges for embeddings [texts, size] as bytes: of two ways the one that keeps more nearest texts.

    One step for all numbers, and 0 as 0, keeps angles and distances. Where a few numbers are far larger than the
    others, each gets a range of its own, from its smallest to its largest value.
    """
    step = float(np.abs(rows).max()) / 127
    one = (np.full(rows.shape[1], -128 * step), np.full(rows.shape[1], 127 * step))
    # Four digits are far more than a step's, and the same whatever order a machine adds numbers in.
    ways = [(_rounded(low), _rounded(high)) for low, high in (one, (rows.min(0), rows.max(0)))]
    return max(ways, key=lambda way: compare(rows, vectors_of(rows, "int8", way)).nearest)


def _rounded(ends: Rows) -> tuple[float, ...]:
    return tuple(float(f"{end:.4g}") for end in ends)


def vectors_of(rows: Rows, precision: str, ranges: tuple[Any, Any]) -> Rows:
    """Narrow embeddings as vectors whose cosines rank texts as their users rank them.

    Bytes are taken as they are. Of bits those count that differ, which the cosines of -1 and 1 say.
    """
    codes = narrow(rows, precision, ranges)
    if precision != "binary":
        return codes.astype(np.float64)
    bits = np.unpackbits((codes.astype(np.int16) + 128).astype(np.uint8), axis=1)
    return 2.0 * bits[:, : rows.shape[1]] - 1


def compare(rows: Rows, others: Rows) -> Likeness:
    """Compares two embeddings [texts, size] of the same texts, over :data:`NEAREST` of them, by cosines."""
    one, two = _cosines(rows), _cosines(others)
    count = min(NEAREST, len(rows) - 1)
    shared = [
        len(set(a) & set(b))
        for a, b in zip(_order(one)[:, :count], _order(two)[:, :count], strict=True)
    ]
    pairs = np.triu_indices(len(rows), 1)
    ranks = np.stack([_ranks(one[pairs]), _ranks(two[pairs])])
    spread = ranks.std(1).prod()
    centred = ranks - ranks.mean(1, keepdims=True)
    correlation = float((centred[0] * centred[1]).mean() / spread) if spread else 0.0
    return Likeness(float(np.mean(shared)), correlation)


def _key(inputs: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    return b"".join(array.tobytes() for array in inputs.values())


def _cosines(rows: Rows) -> Rows:
    wide = rows.astype(np.float64)
    unit = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-30)
    cosines: Rows = unit @ unit.T
    return cosines


def _order(cosines: Rows) -> npt.NDArray[np.intp]:
    """Of each text the others, nearest first."""
    far = -cosines
    np.fill_diagonal(far, np.inf)
    return np.argsort(far, axis=1, kind="stable")


def _ranks(values: Rows) -> Rows:
    """The rank of each value; equal ones have the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place].astype(np.float64)
