"""Builds on the terminal: their options, their result, and the next commands."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from edgecompile.runtime.cpu.host import architecture
from edgecompile.units import format_bytes, format_duration

if TYPE_CHECKING:
    from edgecompile.cli.terminal.console import Console
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.pipeline.result import BuildResult
    from edgecompile.planning.request import PlanRequest
    from edgecompile.progress import StepHandle
    from edgecompile.targets.profile import TargetProfile

__all__ = ["next_step", "show_build", "show_lengths", "show_options"]


def show_options(
    console: Console,
    request: BuildRequest,
    profile: TargetProfile,
    lengths: str,
    plan_file: Path | None,
    *,
    everything: bool,
) -> None:
    """Prints the options that were given; with ``everything`` the defaults, too."""
    plan, load = request.plan, request.load
    low, high = load.batch or (1, 1)
    costs = "a roofline of the profile" if profile.gpu is not None else "measured here"
    if plan.quick:
        costs = "none, as there is nothing to choose"
    # A value, and what its default means.
    options: dict[str, tuple[object, object]] = {
        "model": (request.model, None),
        "target": (request.target, None),
        "lengths": (lengths or None, "every batch size once, if no length varies"),
        "output": (request.bundle, None),
        "programs": (_programs(plan, plan_file), "as many as pay"),
        "longest": (plan.max_length, "the model's limit, or the longest seen"),
        "batch": (None if high == 1 else f"{low}" if low == high else f"{low} to {high}", "1"),
        "precision": (plan.precision, plan.precision_for(profile)),
        "JetPack": (plan.jetpack, profile.jetpacks[0] if profile.jetpacks else "–"),
        "task": (load.task, "what the model says"),
        "engine": (None if plan.backend == "auto" else plan.backend, "auto"),
        "runtime": (None if plan.runtime == "native" else plan.runtime, "native"),
        "mode": (None if plan.mode == "auto" else plan.mode, "auto"),
        "padding": (
            "assumed to be harmless" if plan.assume_paddable else None,
            "only where it is proven",
        ),
        "costs": (plan.calibration, costs if plan_file is None else f"those of {plan_file}"),
        "work folder": (request.work_dir, "temporary"),
        "threads": (plan.threads, "all"),
        "jobs": (plan.jobs, "one for each CPU"),
        "seed": (plan.seed or None, 0),
    }
    console.options(
        {
            name: default if value is None else value
            for name, (value, default) in options.items()
            if everything or value is not None
        }
    )


def _programs(plan: PlanRequest, plan_file: Path | None) -> str | None:
    """How many programs there may be, in words; None: nobody said."""
    if plan_file is not None:
        return f"those of {plan_file}"
    if plan.quick:
        return "1"
    if plan.buckets:
        return f"{plan.buckets}"
    return f"at most {plan.max_buckets}" if plan.max_buckets else None


def show_lengths(step: StepHandle, lengths: LengthDistribution) -> None:
    """Notes what the traffic is like."""
    summary = lengths.summary()
    step.note(
        f"{summary.n:,} inputs, {summary.min} to {summary.max}, median {summary.p50}, "
        f"p99 {summary.p99}"
    )


def show_build(console: Console, profile: TargetProfile, runtime: str, result: BuildResult) -> None:
    """Prints what there is to know about a bundle, and how to go on."""
    if result.unchanged:
        console.say(f"nothing has changed: {result.bundle_path} is what would be built")
        return
    if result.choice is not None:
        from edgecompile.cli.terminal.plan_table import precision_table  # rich is slow to import

        console.show(precision_table(result.choice))
    console.say_notes(result.notes)
    console.summary(
        [
            ("size", format_bytes(result.size_bytes)),
            ("programs", f"{len(result.plan.buckets)}"),
            ("time", format_duration(sum(result.seconds.values()))),
            ("sha256", f"{result.sha256}  manifest.json"),
        ]
    )
    console.say(f"\n  {next_step(profile, result.bundle_path, runtime)}")


def next_step(profile: TargetProfile, bundle: Path, runtime: str) -> str:
    """The next commands, once there is a bundle for these devices."""
    here = profile.gpu is None and architecture(platform.machine()) in profile.archs
    path = shlex.quote(str(bundle) if here else bundle.name)
    command = f"python3 {path} {'selftest' if profile.gpu is None else 'finish'}"
    if runtime == "torch":
        command = f"python3 -m edgecompile.torch_runtime selftest {path}"
    if here:
        return f"Next: {command}"
    return f"Next: copy {shlex.quote(str(bundle))} to the device, and there: {command}"
