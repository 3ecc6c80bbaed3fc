"""Test cases that are the runs of one stream: each takes the state that eager left before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.cases import Case, draw_arrays, make_case
from edgecompile.bundle.reference import Arrays, References
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import TOLERANCES
from edgecompile.runtime.format.manifest.schema import TensorSpec
from edgecompile.runtime.model.state_stream import make_start
from edgecompile.runtime.model.steps import STEP

#: Runs of the stream: each kind of length twice.
STEPS = 6


def step_cases(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    *,
    seed: int = 0,
    rtol: float = TOLERANCES["fp32"].rtol,
) -> Iterator[Case]:
    """The runs of a stream through the buckets in turn; none where the model has no state.

    All of them travel with the bundle, so that a device can repeat the stream.
    """
    if not model.state:
        return
    specs = {i.name: TensorSpec(i.name, i.dtype, i.shape) for i in model.inputs}
    state: Arrays = {s.input: make_start(s, specs[s.input]) for s in model.state}
    references = References(model, rtol)
    random = np.random.default_rng([seed, 3])
    for number in range(STEPS):
        round_, index = divmod(number, len(buckets))
        bucket = buckets[index]
        length = (bucket.hint, bucket.lo, bucket.hi)[(index + round_) % 3]
        sizes = {bucket.length_axis: length, **{axis: e.lo for axis, e in bucket.other_axes}}
        drawn = draw_arrays(model, sizes, int(random.integers(1 << 31)))
        inputs = {**drawn, **state}
        case = make_case(index, f"{STEP}{number}", inputs, references.find(inputs, always=True))
        yield case
        state = {s.input: case.outputs[s.output] for s in model.state}
