"""Plans for models that generate: prompts are planned, single steps have a program.

A generated token is a run of length 1, whatever the prompts are like: the plan always has a
bucket for it alone. Prompts that are longer than the longest run come in pieces.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NoReturn

from edgecompile.backends import CPU, WITH_TENSORRT
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import ModelError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import AxisLimits
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime.format.manifest.schema import RECURRENT_LM, TRITON
from edgecompile.units import format_share


def require_generation(model: LoadedModel, backend: str) -> None:
    """Refuses to build a model that generates for what can't change its caches in place.

    Args:
        model: any model.
        backend: one of :data:`edgecompile.backends.BACKENDS` except ``auto``.

    Raises:
        ModelError: it generates, and that can't run it.
    """
    if model.generation is None or backend == CPU:
        return
    if backend != TRITON:
        refuse_generation(
            model.name, "TensorRT" if backend in WITH_TENSORRT else f'`backend="{backend}"`'
        )
    if model.generation.spec.kind == RECURRENT_LM:
        refuse_states(model.name)
    if model.generation.spec.lookup > 1:
        raise ModelError(
            f"{model.name} was loaded with `lookup`, which no backend for GPUs has",
            hint='leave it out, or build it for a CPU with `backend="cpu"`',
        )


def refuse_generation(name: str, what: str) -> NoReturn:
    """Raises the ModelError for a model that generates, and ``what`` can't run that."""
    hint = 'build it for a CPU with `backend="cpu"`, or without a cache: `task="logits"`'
    if what == "TensorRT":
        hint = '`backend="triton"` generates on a GPU; or ' + hint
    raise ModelError(
        f"{name} generates over caches that it changes in place, which {what} can't run", hint=hint
    )


def refuse_two_parts(name: str) -> NoReturn:
    """Raises the ModelError for a model that generates from a source, on a GPU."""
    raise ModelError(
        f"{name} has an encoder and a decoder, and no backend for GPUs generates by two parts",
        hint='build it for a CPU, or its encoder alone: `task="seq2seq-encoder"`',
    )


def refuse_states(name: str) -> NoReturn:
    """Raises the ModelError for a model that keeps states of a fixed size, on a GPU."""
    raise ModelError(
        f"{name} keeps states of a fixed size, which no backend for GPUs generates with",
        hint='build it for a CPU, or without a cache: `task="logits"`',
    )


def refuse_sources(model: LoadedModel) -> None:
    """Refuses to plan a model of two parts as if it were one.

    Raises:
        ModelError: it goes on from a source, so that its encoder is what is planned.
    """
    if model.encoder is not None:
        raise ModelError(
            f"{model.name} has an encoder and a decoder, which only `edgecompile build` plans together",
            hint='plan its encoder alone: `task="seq2seq-encoder"`',
        )


def prompts_only(exports: ExportStore, request: PlanRequest) -> tuple[ExportStore, PlanRequest]:
    """The model and the traffic as far as prompts are planned: runs that give the last token's logits alone."""
    model = exports.model
    assert model.length_axis is not None
    limits = model.axes[model.length_axis]
    assert limits.hi is not None
    least = _least_prompt(model)
    axes = {**model.axes, model.length_axis: AxisLimits(least, limits.hi)}
    lengths = prompt_lengths(request.traffic, limits.hi, least)
    return exports.of(replace(model, axes=axes)), replace(request, lengths=lengths)


def refused_prompts(model: LoadedModel, request: PlanRequest) -> list[str]:
    """A note where prompts of the traffic are longer than the context: pieces don't help those."""
    assert model.generation is not None
    room = model.generation.spec.max_context - 1  # a token has to fit behind them
    share = request.traffic.share_over(room)
    if not share:
        return []
    return [
        f"{format_share(share)} of the prompts are longer than {room} tokens, the most that the "
        "context has room for, and will be refused"
    ]


def _least_prompt(model: LoadedModel) -> int:
    """Tokens of the shortest run that gives the last token's logits alone, but for single tokens."""
    assert model.generation is not None
    return model.generation.spec.lookup + 1


def prompt_lengths(prompts: LengthDistribution, longest: int, least: int = 2) -> LengthDistribution:
    """The lengths of the runs that prompts take, each of ``least`` to ``longest`` tokens; shorter ones count as that."""
    counts: Counter[int] = Counter()
    for length, count in zip(prompts.lengths, prompts.counts, strict=True):
        whole, rest = divmod(length, longest)
        if whole:
            counts[longest] += whole * count
        if rest:
            counts[max(least, rest)] += count
    return LengthDistribution.from_counts(counts, prompts.source)


def decoder_buckets(model: LoadedModel) -> BucketPlan:
    """The programs of a decoder that goes on from a source: for one token, and for a few to begin with.

    There is nothing to choose: a text begins with a token or two, and goes on by one.
    """
    axis = model.length_axis
    assert axis is not None
    longest = model.axes[axis].hi or 1
    others = []
    for name, limits in model.axes.items():
        if name != axis:
            assert limits.hi is not None
            others.append((name, AxisRange(limits.lo, limits.hi, limits.lo)))
    runs = [AxisRange(1, 1, 1)]
    if longest > 1:
        runs.append(AxisRange(2, longest, min(longest, 4)))
    return BucketPlan(axis, tuple(Bucket("exact", ((axis, run), *others)) for run in runs))


def with_decode(plan: BucketPlan, model: LoadedModel) -> BucketPlan:
    """The plan with the program of single tokens in front, and that of runs for lookup."""
    assert model.generation is not None
    lookup = model.generation.spec.lookup
    first = plan.buckets[0]
    others = tuple((name, AxisRange(r.lo, r.hi, r.lo)) for name, r in first.other_axes)
    runs = [AxisRange(1, 1, 1)]
    if lookup > 1:
        runs.append(AxisRange(2, lookup, min(lookup, 4)))
    own = [Bucket("exact", ((plan.length_axis, run), *others)) for run in runs]
    names = "single tokens" if lookup == 1 else f"single tokens, and 2 to {lookup},"
    note = f"{names} have a program of their own; costs are those of prompts"
    return replace(plan, buckets=(*own, *plan.buckets), notes=(*plan.notes, note))
