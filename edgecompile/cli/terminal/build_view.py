"""Builds on the terminal: their options, their result, and the next commands."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from edgecompile.runtime.cpu.host import architecture
from edgecompile.units import format_bytes, format_duration

if TYPE_CHECKING:
    from edgecompile.cli.terminal.console import Console
    from edgecompile.pipeline.result import BuildResult
    from edgecompile.targets.profile import TargetProfile

#: How helps name a default that isn't a value.
_DEFAULT = re.compile(r"(?:Default:|\[default:)\s+(.+?)[.\]]*$")


def show_options(
    console: Console,
    preset: Mapping[str, object] = MappingProxyType({}),
    *,
    everything: bool = False,
) -> None:
    """Shows the options that were given, before the first step.

    Args:
        console: where.
        preset: options that are shown with these values, whether they were given or not.
        everything: show the defaults, too.
    """
    context = click.get_current_context()
    shown: dict[str, object] = {}
    for parameter in context.command.params:
        name = str(parameter.name)
        explicit = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        by_default = everything and not getattr(parameter, "hidden", False)
        if not (explicit or by_default or name == "target" or name in preset):
            continue
        value = preset.get(name, context.params.get(name))
        if isinstance(parameter, click.Option):
            if parameter.is_flag and not parameter.secondary_opts:
                value = explicit
            default = _DEFAULT.search(parameter.help or "")
            value = default[1] if value is None and default else value
        shown[max(parameter.opts, key=len).lstrip("-")] = value
    console.options(shown)


def show_build(
    console: Console,
    profile: TargetProfile,
    result: BuildResult,
    backend: str,
) -> None:
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
    console.say(f"\n  {next_step(profile, result.bundle_path, backend)}")


def next_step(profile: TargetProfile, bundle: Path, backend: str) -> str:
    """The next commands, once there is a bundle for these devices."""
    here = profile.gpu is None and architecture(platform.machine()) in profile.archs
    finishes = profile.gpu is not None and backend != "triton"
    path = shlex.quote(str(bundle) if here else bundle.name)
    command = f"python3 {path} {'finish' if finishes else 'selftest'}"
    if backend == "torch":
        command = f"python3 -m edgecompile.torch_runtime selftest {path}"
    if here:
        return f"Next: {command}"
    return f"Next: copy {shlex.quote(str(bundle))} to the device, and there: {command}"
