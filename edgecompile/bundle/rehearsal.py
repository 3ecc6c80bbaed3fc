"""Rehearses a GPU's programs on the build host, in a process of its own that loads them without a driver.

A rehearsal goes through a run in the program's host code and launches nothing: it tells the outputs' shapes and the
memory that the run asks for. Here that is done at all sizes, or at many, with the functions that the loader calls: what
it would refuse on the device, is refused here. ``python -m edgecompile.bundle.rehearsal BUNDLE VARIANT`` is that process.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgecompile.errors import VerificationError
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.weights import map_weights
from edgecompile.runtime.format.manifest.schema import BucketSpec, Manifest, TensorSpec, Variant
from edgecompile.runtime.format.sums import size_of
from edgecompile.runtime.triton.library import load_variant_library
from edgecompile.runtime.triton.rehearsals import Rehearsals
from edgecompile.runtime.triton.tuning import list_candidates, with_choice

#: What the manifest calls this check.
REHEARSAL = "rehearsal"
#: Of a bucket, with the programs of one rule of tiles. Each takes some tenths of a millisecond.
_MOST_SIZES = 1024
#: Problems that a message lists.
_MOST_LISTED = 5


def rehearse(bundle: Path, variant: str) -> None:
    """Rehearses every program of a variant for this host's architecture.

    Args:
        bundle: its folder; all files are there.
        variant: its name.

    Raises:
        VerificationError: a program refuses a size, or does something else there than the loader expects.
    """
    command = [sys.executable, "-m", __name__, str(bundle.resolve()), variant]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        problems = [str(item) for item in json.loads(done.stdout)]
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        problems = [f"the process failed with exit code {done.returncode}: {lines[-1]}"]
    if problems:
        raise VerificationError(
            f"{variant}: rehearsed on this host, its programs don't do what the loader expects: "
            + "; ".join(problems),
            hint="this is a defect of edgecompile; please report it with the model's architecture",
        )


def _find_problems(folder: BundleFolder, variant: Variant) -> list[str]:
    """Lists problems, at most :data:`_MOST_LISTED`."""
    assert variant.gpu is not None
    library = load_variant_library(folder, variant)
    weights = map_weights(folder, folder.manifest.weights[variant.gpu.precision], False)
    lists = list_candidates(variant)
    problems: list[str] = []
    for number in range(max(map(len, lists))):
        chosen = with_choice(variant, [min(number, len(items) - 1) for items in lists])
        complaints = _rehearse_all(Rehearsals(library, folder, chosen, weights), folder.manifest)
        problems += itertools.islice(complaints, _MOST_LISTED - len(problems))
    return problems


def _rehearse_all(rehearsals: Rehearsals, manifest: Manifest) -> Iterator[str]:
    buckets = range(len(manifest.buckets))
    try:
        scratch = max(rehearsals.scratch_bytes(index) for index in buckets)
    except EdgecompileError as error:
        yield error.message
        return
    for index in buckets:
        yield from _rehearse_bucket(rehearsals, manifest, index, scratch)


def _rehearse_bucket(
    rehearsals: Rehearsals, manifest: Manifest, index: int, scratch: int
) -> Iterator[str]:
    program = rehearsals.program(index)
    for sizes in spread_sizes(manifest.buckets[index], manifest.length_axis):
        at = f"bucket {index}, " + ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        try:
            outputs, needed = program.rehearse(
                {spec.name: tuple(_shape(spec, sizes)) for spec in manifest.inputs}
            )
        except EdgecompileError as error:
            yield f"{at}: {error.message}"
            continue
        if needed > scratch:
            yield (
                f"{at}: takes {needed} bytes of scratch memory at this size, more than the "
                f"{scratch} of its largest shapes"
            )
            continue
        for spec in manifest.outputs:
            expected, actual = _shape(spec, sizes), outputs[spec.name]
            alike = all(
                size in (None, other) for size, other in zip(expected, actual, strict=False)
            )
            if len(expected) != len(actual) or not alike:
                yield f"{at}: {spec.name} has shape {list(actual)}, the manifest says {expected}"


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> list[Any]:
    """A shape at these sizes; None where it doesn't follow from them."""
    return [None if dim is None else size_of(dim, sizes) for dim in spec.shape]


def spread_sizes(
    bucket: BucketSpec, length_axis: str | None, most: int = _MOST_SIZES
) -> Iterator[dict[str, int]]:
    """Sizes that a bucket's program runs: all of them, or about ``most`` with every combination of ends."""
    padded = bucket.padded(length_axis)
    spans = {
        axis: range(extent.hi if axis in padded else extent.lo, extent.hi + 1, extent.step)
        for axis, extent in bucket.axes.items()
    }
    values: dict[str, Sequence[int]] = {}
    # The narrow axes first: what they leave is for the wide ones.
    for left, axis in zip(
        range(len(spans), 0, -1),
        sorted(spans, key=lambda x: len(spans[x])),
        strict=True,
    ):
        span = spans[axis]
        count = min(len(span), max(2, int(most ** (1 / left))))
        values[axis] = [span[(len(span) - 1) * i // max(1, count - 1)] for i in range(count)]
        most //= count
    for combination in itertools.product(*(values[axis] for axis in spans)):
        yield dict(zip(spans, combination, strict=True))


def _main(path: str, name: str) -> None:
    folder = BundleFolder(path)
    variant = next(item for item in folder.manifest.variants if item.name == name)
    print(json.dumps(_find_problems(folder, variant)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
