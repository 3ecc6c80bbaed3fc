"""Runs of a bundle's programs for a GPU, made ready to be timed beside each other."""

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

from ..call.inputs import make_inputs
from ..format.manifest.schema import Manifest
from ..open.bundle import OpenBundle
from ..triton.programs import GRAPH_AFTER

#: Sizes of a bucket from its least to its largest, where a product's rows are varied.
_STEPS = 12


def choose_sizes(manifest: Manifest, bucket: int) -> List[Dict[str, int]]:
    """The axis sizes that a program is measured at: its bucket's hint, and the ends of the length axis."""
    spec, axis = manifest.buckets[bucket], manifest.length_axis
    hint = {name: item.hint or item.hi for name, item in spec.axes.items()}
    hint.update({name: spec.axes[name].hi for name in spec.padded(axis)})
    candidates = [hint]
    if axis is not None and axis not in spec.padded(axis):
        candidates += [{**hint, axis: end} for end in (spec.axes[axis].lo, spec.axes[axis].hi)]
    result: List[Dict[str, int]] = []
    for sizes in candidates:
        fitted = manifest.with_room(spec, sizes)
        if fitted not in result:
            result.append(fitted)
    return result


def spread_sizes(manifest: Manifest, bucket: int) -> List[Dict[str, int]]:
    """Axis sizes of a bucket from its lower to its upper ends, each some times those before."""
    spec, axis = manifest.buckets[bucket], manifest.length_axis
    padded = spec.padded(axis)
    result: List[Dict[str, int]] = []
    for step in range(_STEPS):
        share = step / (_STEPS - 1)
        sizes = {
            name: item.hi
            if name in padded
            else item.below(round(max(item.lo, 1) * (item.hi / max(item.lo, 1)) ** share))
            for name, item in spec.axes.items()
        }
        fitted = manifest.with_room(spec, sizes)
        if fitted not in result:
            result.append(fitted)
    return result


def warm_up(runs: Sequence[Callable[[], Any]]) -> None:
    """Runs each until it has its graph, where it gets one."""
    for run in runs:
        for _ in range(GRAPH_AFTER + 1):
            run()


@contextlib.contextmanager
def prepared(
    model: OpenBundle, bucket: int, sizes: Sequence[Mapping[str, int]]
) -> Iterator[List[Callable[[], Any]]]:
    """Runs of a bucket at these sizes; of a model that generates over caches on the GPU, as a text does."""
    manifest = model.manifest
    spec = manifest.generation
    input_sets = [make_inputs(manifest, item, 0) for item in sizes]
    if spec is None or not model.gpu.keeps_texts:
        checked = [model.check_once(inputs) for inputs in input_sets]
        yield [functools.partial(model.run_bucket, bucket, inputs) for inputs in checked]
        return
    assert spec.context_axis is not None  # on a GPU
    for inputs, item in zip(input_sets, sizes):
        # In the middle of a text, where it reads as many rows as the hint says.
        inputs[spec.position][...] = item[spec.context_axis] - item[spec.length_axis]
    names = [item.name for item in manifest.inputs if item.name not in spec.caches]
    text = model.hold(model.gpu.take_text)
    try:
        program = model.hold(text.get, bucket)
        yield [
            functools.partial(program.run, [item[name] for name in names]) for item in input_sets
        ]
    finally:
        model.gpu.give_back(text)
