"""Options of several commands that stand for themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from edgecompile.cli.options import Decorator

__all__ = [
    "DEFAULT_TARGET",
    "bundle_option",
    "complete_target",
    "file_option",
    "force_option",
    "jobs_option",
    "max_length_option",
    "mode_option",
    "plan_file_option",
    "runtime_option",
    "seed_option",
    "target_option",
    "threads_option",
    "tokenizer_option",
    "variants_option",
    "work_dir_option",
]


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


target_option = click.option(
    "--target",
    "-t",
    default=DEFAULT_TARGET,
    show_default=True,
    metavar="NAME",
    shell_complete=complete_target,
    help="Build for this device: a name from 'edgecompile targets list', or a TOML file.",
)

mode_option = click.option(
    "--mode",
    type=click.Choice(["auto", "exact", "pad"]),
    default="auto",
    show_default=True,
    help="Use programs of dynamic length (exact), of fixed length with padded inputs (pad), or those "
    "that suit the model.",
)

max_length_option = click.option(
    "--max-length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Serve lengths up to N. Default: the model's limit, or the longest seen.",
)

runtime_option = click.option(
    "--runtime",
    type=click.Choice(["native", "torch"]),
    default="native",
    show_default=True,
    help="Run the programs on a CPU with the library in the bundle (native); or with torch, for "
    "models with kernels that this library lacks, on hosts that have the same version of torch.",
)

threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Measure with N threads. Default: every CPU that the process may use.",
)

jobs_option = click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compile N programs at once. Default: one for each CPU.",
)

seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Set the random seed.",
)

bundle_option = file_option(
    "--output",
    "-o",
    metavar="NAME.ecb",
    help="Write the bundle here. Default: the model's name with .ecb, in the current folder.",
)

force_option = click.option("--force", is_flag=True, help="Replace a bundle of the same name.")

tokenizer_option = click.option(
    "--no-tokenizer",
    "keep_tokenizer",
    flag_value=False,
    default=True,
    is_flag=True,
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
