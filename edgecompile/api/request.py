"""The request that the arguments of build() and plan() make; all are checked before any work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgecompile import checks
from edgecompile.api.models import ModelArgument, kept_state, without_lengths
from edgecompile.api.options import BuildOptions, PlanOptions, read_target
from edgecompile.api.traffic_sources import Sources
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.progress import Progress


@contextmanager
def requested(
    subject: ModelArgument,
    sources: Sources,
    options: PlanRequest,
    *,
    progress: Progress,
    target: Any,
    work_dir: Any = None,
    output: Any = None,
    force: Any = False,
    without_gpu: str = "",
) -> Iterator[BuildRequest]:
    """The request with its traffic; a list of texts stays readable while the context lasts.

    Args:
        subject: the model.
        sources: the sources of its lengths.
        options: the settings that decide the plan, without lengths.
        progress: the display, which is shown how the lengths are read.
        target, work_dir, output, force: the arguments of :func:`edgecompile.build`.
        without_gpu: the reason why a target with a GPU is refused; empty: it isn't.

    Raises:
        UsageError: an argument has the wrong type, contradicts another, or is missing.
        LengthsError: the lengths can't be read, or aren't any.
        ModelError, MissingDependencyError: the model or the tokenizer can't be read.
        TargetError: there is no such target.
    """
    request = BuildRequest(
        subject.model,
        read_target(target),
        options,
        subject.options,
        checks.path("work_dir", work_dir),
        checks.path("output", output) or Path(subject.name),
        checks.flag("force", force),
    )
    request.check_target(without_gpu)
    # With the batches of a server, where the request has them.
    replace(subject, options=request.load).check(varying=sources.given)
    with ExitStack() as stack:
        stack.enter_context(kept_state(subject.model))
        if sources.given:
            with progress.step("read the lengths") as step:
                traffic = stack.enter_context(sources.read(options.max_length))
                step.note(f"{traffic.lengths.summary()}")
            if traffic.joint is not None:
                subject.check_pairs(traffic.joint.axes[1])
            cut = traffic.texts is not None
            request = replace(request, plan=replace(options, **vars(traffic), cut=cut))
        else:
            request = replace(request, model=without_lengths(subject, request.load))
        yield request


def plan_request(
    max_length: Any = None,
    precision: Any = None,
    plan_options: Any = None,
    build_options: Any = None,
    **more: Any,
) -> PlanRequest:
    """The request that these arguments make, without lengths; ``more`` are further fields.

    Raises:
        UsageError: an option has the wrong type, or contradicts another.
    """
    return PlanRequest(
        None,
        max_length=checks.whole("max_length", max_length),
        precision=precision,
        **vars(checks.options("plan_options", plan_options, PlanOptions)),
        **vars(checks.options("build_options", build_options, BuildOptions)),
        **more,
    )
