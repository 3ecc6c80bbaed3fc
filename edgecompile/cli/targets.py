"""``edgecompile targets``: the device profiles that are known, and whether they can be used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import DEFAULT_TARGET, file_option
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.hosts.detection import TargetCheck
    from edgecompile.targets.profile import TargetProfile

_EPILOG = """\b
Examples:
  edgecompile targets list
  edgecompile targets show cpu-x86-64
  edgecompile targets check ./my-board.toml
  edgecompile targets detect --output my-board.toml
"""


@click.group("targets", epilog=_EPILOG, short_help="List, show, check and detect profiles.")
def command() -> None:
    """List, show, check and detect the device profiles that --target takes.

    Profiles are TOML files. A name is looked up in $EDGECOMPILE_PROFILES, then among the installed
    profiles; a path works as well.
    """


@command.command("list", cls=Command)
def list_command(session: Session) -> None:
    """List the known targets."""
    from edgecompile.targets.profile import list_targets, load_target

    profiles = [load_target(name) for name in list_targets()]
    rows = [
        {
            "name": profile.name,
            "kind": profile.kind,
            "variants": [variant.name for variant in profile.variants],
            "description": profile.description,
        }
        for profile in profiles
    ]
    session.emit({"targets": rows}, lambda: _list_table(profiles))


@command.command("show", cls=Command)
@click.argument("target", default=DEFAULT_TARGET)
def show_command(session: Session, target: str) -> None:
    """Show one target: its variants, limits and speed."""
    from edgecompile.targets.profile import load_target

    profile = load_target(target)
    session.emit(profile.to_json(), lambda: _show_table(profile))


@command.command("check", cls=Command)
@click.argument("target", default=DEFAULT_TARGET)
def check_command(session: Session, target: str) -> None:
    """Check a profile, and whether this machine can build for it and run it.

    Exits with an error if this machine can't build for it.
    """
    from edgecompile.hosts.detection import check_target
    from edgecompile.targets.profile import load_target

    check = check_target(load_target(target))
    session.emit(check.to_json(), lambda: _check_table(check))
    check.require()


@command.command("detect", cls=Command)
@file_option(
    "--from",
    "described",
    help="Describe another machine, from the output of 'python3 BUNDLE info --host --json' there.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Give the profile this name.  [default: the file's, or this-machine]",
)
@click.option("--toml", is_flag=True, help="Print the profile as a TOML file.")
@file_option("--output", "-o", help="Write the profile to FILE.toml, for --target.")
def detect_command(
    session: Session, described: Path | None, name: str | None, toml: bool, output: Path | None
) -> None:
    """Describe this machine as a target.

    The profile has the CPU's features, but no bandwidth and no peak: measure costs on the
    machine instead (plan --calibration-bundle, bench --calibrate).
    """
    from edgecompile.files import write_text
    from edgecompile.hosts.detection import (
        DEFAULT_NAME,
        describe_device,
        describe_here,
        detect_target,
        format_profile,
    )

    if output is not None and output.suffix != ".toml":
        raise click.UsageError(f"--output {output} doesn't end in .toml.")
    if output is not None and name not in (None, output.stem):
        raise click.UsageError(f"--name {name} differs from the file's name {output.stem}.")
    if toml and session.json:
        raise click.UsageError("--toml and --json exclude each other.")
    name = name or (output.stem if output is not None else DEFAULT_NAME)
    host = describe_here() if described is None else describe_device(described)
    profile = detect_target(host, name)
    if output is not None:
        write_text(output, format_profile(profile))
        session.console.say(f"  wrote {output}: edgecompile build MODEL --target {output}")
    if toml:
        session.stdout.write(format_profile(profile))
        session.stdout.flush()
        return
    session.emit(profile.to_json(), lambda: _show_table(profile))


def _list_table(profiles: list[TargetProfile]) -> RenderableType:
    from edgecompile.cli.terminal.tables import table

    rows = [
        (profile.name, ", ".join(variant.name for variant in profile.variants), profile.description)
        for profile in profiles
    ]
    return table(("target", "variants", "description"), rows, left=3)


def _show_table(profile: TargetProfile) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts, heading, stack, table

    peaks = ", ".join(f"{precision} {peak:g}" for precision, peak in profile.peak_gflops)
    gbs = profile.bandwidth_gbs
    bandwidth = "bandwidth not known" if gbs is None else f"{gbs:g} GB/s"
    rows = [
        ("name", profile.name),
        ("description", profile.description),
        ("cores", f"{profile.cores}"),
        ("memory", f"{profile.memory_gib:g} GiB, {bandwidth}"),
        ("clock", "–" if profile.clock_ghz is None else f"{profile.clock_ghz:g} GHz"),
        ("peak", f"{peaks} GFLOP/s" if peaks else "not known"),
        ("glibc", f"{profile.glibc} or newer"),
        ("python", f"{profile.python} or newer"),
    ]
    variants = [
        (
            variant.name,
            variant.march,
            f"{variant.simdlen}",
            f"{variant.rank}",
            " ".join(variant.requires),
        )
        for variant in profile.variants
    ]
    columns = ("variant", "-march", "vector bits", "rank", "requires")
    sources: list[RenderableType] = []
    if profile.sources:
        sources = [heading("Sources"), table(("figure", "source"), profile.sources, left=2)]
    return stack(facts(rows), heading("Variants"), table(columns, variants, left=5), *sources)


def _check_table(check: TargetCheck) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts

    profile = check.profile
    return facts(
        [
            ("profile", f"{profile.name} is well-formed"),
            *((f"builds {arch}", check.compilers.get(arch, "none")) for arch in profile.archs),
            ("runs here", ", ".join(check.runs_here) or "none of its variants"),
        ]
    )
