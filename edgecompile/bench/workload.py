"""The work of a benchmark: its lengths and its inputs."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgecompile.bench.timings import stream
from edgecompile.errors import BenchError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.format.sums import parse_sum
from edgecompile.units import format_share

if TYPE_CHECKING:
    from edgecompile.models.loaded import LoadedModel


@dataclass(frozen=True)
class Workload:
    """The runs of every process in a round.

    Attributes:
        lengths: the lengths of the runs, ascending; rounds shuffle them.
        figures: the figures of these lengths, and their origin; plain values.
        inputs: ``specs``, ``sizes`` and ``length_axis``, from which each process makes the inputs.
        notes: the differences of the lengths from the traffic that was given.
    """

    lengths: tuple[int, ...]
    figures: Mapping[str, Any]
    inputs: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def choose_workload(
    manifest: Manifest,
    traffic: LengthDistribution | None,
    runs: int,
    model: LoadedModel | None = None,
) -> Workload:
    """The work for a bundle.

    Args:
        manifest: the manifest of the bundle.
        traffic: None: the length that each bucket is tuned for. Longer inputs than the bundle
            takes count as its longest, as a tokenizer's truncation has it.
        runs: the number of lengths of a round.
        model: tells from which values to draw, within the manifest's bounds.

    Raises:
        BenchError: no length is in a bucket, or the model isn't the bundle's.
    """
    inputs = _inputs(manifest, model)
    axis = manifest.length_axis
    if axis is None:
        return Workload((1,) * runs, {"source": "the model has no length axis", "n": runs}, inputs)
    if traffic is None:
        hints = [bucket.axes[axis].hint or bucket.axes[axis].hi for bucket in manifest.buckets]
        traffic = LengthDistribution.from_samples(hints, "what each bucket is tuned for")
    notes = []
    longest = manifest.axes[axis].hi
    served, over = traffic.clip(longest)
    if over:
        notes.append(f"{format_share(over)} of the lengths are over {longest} and were cut to it")
    counts = {
        length: count
        for length, count in zip(served.lengths, served.counts, strict=True)
        if any(length in bucket.axes[axis] for bucket in manifest.buckets)
    }
    if not counts:
        spans = ", ".join(str(bucket.axes[axis]) for bucket in manifest.buckets)
        raise BenchError(
            f"none of the lengths of {traffic.source} is in a bucket of {manifest.name}",
            hint=f"its buckets are {spans}",
        )
    refused = served.n - sum(counts.values())
    if refused:
        notes.append(
            f"{format_share(refused / served.n)} of the lengths are in no bucket and were left out"
        )
    chosen = stream(LengthDistribution.from_counts(counts, traffic.source), runs)
    figures = LengthDistribution.from_samples(chosen, traffic.source).summary().to_json()
    return Workload(chosen, {"source": traffic.source, **figures}, inputs, tuple(notes))


def _spell_out(value: Any, axes: Container[str]) -> Any:
    """A size or bound as workers read it, which know no syntax of sums."""
    found = parse_sum(value) if isinstance(value, str) and value not in axes else None
    return value if found is None else {"terms": dict(found.terms), "constant": found.constant}


def _inputs(manifest: Manifest, model: LoadedModel | None) -> dict[str, Any]:
    names = [spec.name for spec in manifest.inputs]
    draws: dict[str, Any] = dict.fromkeys(names)
    if model is not None:
        theirs = [spec.name for spec in model.inputs]
        if names != theirs:
            raise BenchError(
                f"{model.name} isn't the model of this bundle: its inputs are "
                f"{', '.join(theirs)}, those of the bundle {', '.join(names)}"
            )
        draws = {spec.name: spec.draw for spec in model.inputs}
    specs = []
    for spec in manifest.inputs:
        draw = draws[spec.name]
        entry = {**spec.to_json(True), "draw": None if draw is None else list(draw)}
        for key in ("shape", "bounds", "draw"):
            entry[key] = entry[key] and [_spell_out(v, manifest.axes) for v in entry[key]]
        specs.append(entry)
    sizes = {
        name: manifest.buckets[0].axes[name].hint or extent.lo
        for name, extent in manifest.axes.items()
    }
    return {"specs": specs, "sizes": sizes, "length_axis": manifest.length_axis}
