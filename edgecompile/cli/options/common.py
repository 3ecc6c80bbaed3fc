"""Options of several commands that stand for themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from edgecompile.cli.options import Decorator

DEFAULT_TARGET = "cpu-x86-64"


def complete_target(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names of targets that begin so, for the shell."""
    from edgecompile.targets.profile import list_targets

    return [CompletionItem(name) for name in list_targets() if name.startswith(incomplete)]


def file_option(*names: str, help: str, metavar: str = "FILE", **more: Any) -> Decorator:
    """An option that names a file or a folder."""
    folder = metavar == "DIR"
    kind = click.Path(path_type=Path, file_okay=not folder)
    return click.option(*names, type=kind, metavar=metavar, help=help, **more)


def number_option(
    *names: str, help: str, least: int = 1, metavar: str = "N", **more: Any
) -> Decorator:
    """An option that takes a whole number from ``least`` on."""
    return click.option(*names, type=click.IntRange(min=least), metavar=metavar, help=help, **more)


def off_option(*names: str, help: str) -> Decorator:
    """A flag that makes its argument False, which is True else."""
    return click.option(
        *names, flag_value=False, default=True, show_default=False, is_flag=True, help=help
    )


target_option = click.option(
    "--target",
    "-t",
    default=DEFAULT_TARGET,
    metavar="NAME",
    shell_complete=complete_target,
    help="Build for this device: a name from 'edgecompile targets list', or a TOML file.",
)

mode_option = click.option(
    "--mode",
    type=click.Choice(["auto", "exact", "pad"]),
    default="auto",
    help="Use programs of dynamic length (exact), of fixed length with padded inputs (pad), or those "
    "that suit the model.",
)

max_length_option = number_option(
    "--max-length", help="Serve lengths up to N. Default: the model's limit, or the longest seen."
)

runtime_option = click.option(
    "--runtime",
    type=click.Choice(["native", "torch"]),
    default="native",
    help="Run the programs on a CPU with the library in the bundle (native); or with torch, for "
    "models with kernels that this library lacks, on hosts that have the same version of torch.",
)

threads_option = number_option(
    "--threads", help="Measure with N threads. Default: every CPU that the process may use."
)

jobs_option = number_option(
    "--jobs", "-j", help="Compile N programs at once. Default: one for each CPU."
)

on_option = click.option(
    "--on",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="Compile programs for CPUs on this machine (local), or on the machines of the Ray cluster at "
    "RAY_ADDRESS (ray); costs are measured here, or on a machine of it that says that it is the target.",
)

seed_option = number_option("--seed", least=0, default=0, help="Set the random seed.")

bundle_option = file_option(
    "--output",
    "-o",
    metavar="NAME.ecb",
    help="Write the bundle here. Default: the model's name with .ecb, in the current folder.",
)

force_option = click.option("--force", is_flag=True, help="Replace a bundle of the same name.")

tokenizer_option = off_option(
    "--no-tokenizer",
    "keep_tokenizer",
    help="Leave the model's tokenizer.json out: the device is given token ids.",
)

work_dir_option = file_option(
    "--work-dir", "-w", metavar="DIR", required=True, help="Keep the stages' files in this folder."
)

plan_file_option = file_option(
    "--plan", "plan_file", help="Use the buckets of this plan. Default: DIR/plan.json."
)

variants_option = click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    help="Use this variant of the target only; may be given several times.",
)
