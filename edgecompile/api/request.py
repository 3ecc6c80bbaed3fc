"""The request that the arguments of build() and plan() make; all are checked before any work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgecompile import checks
from edgecompile.api.models import find_subject, kept_state, require_lengths
from edgecompile.api.options import BuildOptions, PlanOptions, read_batch, read_target
from edgecompile.api.traffic import find_sources
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.progress import Progress

__all__ = ["plan_request", "requested"]


@contextmanager
def requested(
    model: Any,
    *,
    target: Any,
    batch: Any,
    progress: Progress,
    example_inputs: Any = None,
    axes: Any = None,
    load_options: Any = None,
    work_dir: Any = None,
    output: Any = None,
    force: Any = False,
    without_gpu: str = "",
    lengths: Any = None,
    texts: Any = None,
    tokenizer: Any = None,
    stats: Any = None,
    **options: Any,
) -> Iterator[BuildRequest]:
    """The request with its traffic; a list of texts stays readable while the context lasts.

    Args:
        model, target, batch, example_inputs, axes, load_options, work_dir, output, force, lengths,
        texts, tokenizer, stats: as of :func:`edgecompile.build`.
        progress: is shown how the lengths are read.
        without_gpu: why a target with a GPU is refused; empty: it isn't.
        options: of :func:`plan_request`.

    Raises:
        UsageError: an argument has the wrong type, contradicts another, or is missing.
        LengthsError: the lengths can't be read, or aren't any.
        ModelError, MissingDependencyError: the model or the tokenizer can't be read.
        TargetError: there is no such target.
    """
    sources = find_sources(model, lengths, texts, tokenizer, stats)
    subject = find_subject(model, example_inputs, axes, load_options, varying=sources.given)
    request = BuildRequest(
        subject.model,
        read_target(target),
        plan_request(**options),
        replace(subject.options, batch=read_batch(batch)),
        checks.path("work_dir", work_dir),
        checks.path("output", output) or Path(subject.name),
        checks.flag("force", force),
    )
    request.check_target(without_gpu)
    with ExitStack() as stack:
        stack.enter_context(kept_state(subject.model))
        if sources.given:
            with progress.step("read the lengths") as step:
                traffic = stack.enter_context(sources.read(request.plan.max_length))
                step.note(f"{traffic.lengths.summary()}")
            cut = traffic.texts is not None
            sized = replace(request.plan, **vars(traffic), cut=cut)
            request = replace(request, plan=sized)
        else:
            require_lengths(subject, request.load)
        yield request


def plan_request(
    *,
    max_length: Any = None,
    precision: Any = None,
    plan_options: Any = None,
    build_options: Any = None,
    **more: Any,
) -> PlanRequest:
    """The request that these arguments make, without lengths; ``more`` are further fields."""
    return PlanRequest(
        None,
        max_length=checks.whole("max_length", max_length),
        precision=precision,
        **vars(checks.options("plan_options", plan_options, PlanOptions)),
        **vars(checks.options("build_options", build_options, BuildOptions)),
        **more,
    )
