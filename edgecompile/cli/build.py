"""``edgecompile build``: from a model and its lengths to a verified bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import (
    backend_options,
    bundle_option,
    file_option,
    force_option,
    off_option,
    target_option,
    tokenizer_option,
    untested_torch_option,
)
from edgecompile.cli.options.groups import GroupedOptions
from edgecompile.cli.options.model import model_argument, model_options
from edgecompile.cli.options.plan import plan_options
from edgecompile.cli.options.traffic_options import TrafficOptions, traffic_options
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from edgecompile.models.options import LoadOptions

_EPILOG = """\b
Examples:
  edgecompile build ./minilm --target cpu-x86-64 --lengths lengths.txt
  edgecompile build ./minilm --texts queries.txt --max-length 256 --output search.ecb
  edgecompile build ./minilm --lengths lengths.txt --quick
  edgecompile build ./minilm --lengths lengths.txt --plan plan.json
  edgecompile build ./minilm --texts queries.txt --precision auto --max-error 1%
  edgecompile build net.py:make_model --lengths counts.csv --batch 1..8 --keep-work
  edgecompile build ./minilm --texts queries.txt --profile server
  edgecompile build ./minilm --target jetson-orin-nano --texts queries.txt --jetpack 6.2
  edgecompile build ./minilm --target cuda-sm90 --texts queries.txt --backend triton
  cut -f3 access.log | edgecompile build ./minilm --lengths - --json
"""


def _complete_jetpack(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from edgecompile.targets.jetpack import list_jetpacks

    return [name for name in list_jetpacks() if name.startswith(incomplete)]


class _Command(GroupedOptions, Command):
    """Its options are many, so the help groups them."""


@click.command("build", cls=_Command, epilog=_EPILOG, short_help="Build and verify a bundle.")
@model_argument
@target_option
@traffic_options
@bundle_option
@plan_options(
    backend_options("tensorrt", "triton", "both"),
    click.option(
        "--jetpack",
        metavar="RELEASE",
        shell_complete=_complete_jetpack,
        help="Build only for this JetPack release of a Jetson: 6.0, 6.2 or 7.2.  [default: the target's "
        "first release, 6.2, and also 6.0 if its TensorRT takes the model]",
    ),
    click.option(
        "--alternatives",
        type=click.IntRange(0, 3),
        default=0,
        metavar="N",
        help="Pack N further programs with other tiles for each bucket of a GPU (--backend triton or "
        "both), at most 3. `tune` on the device picks the fastest. Each takes about 1 MB.",
    ),
    off_option(
        "--no-fallback",
        "fallback",
        help="Leave out the programs for the CPU next to a GPU, and their weights. A first build takes a "
        "fraction of the time, and the bundle runs only on the GPU.",
    ),
    click.option(
        "--profile",
        type=click.Choice(["device", "server"]),
        default="device",
        help="Build for single runs (device), or for a server that batches requests (server): batches of 1 "
        "to 32 unless --batch is given, with their costs measured on parts of the CPUs.",
    ),
    off_option(
        "--no-emulation",
        "emulation",
        help="Don't use qemu: variants that this machine can't run are packed unverified.",
    ),
    tokenizer_option,
    file_option(
        "--prefix",
        help="Put the caches behind this prompt into the bundle of a language model: a text or, in a .json "
        "file, a list of messages. Texts that begin with it start behind it, without a run of it.",
    ),
    click.option(
        "--texts-at-once",
        type=click.IntRange(2, 8),
        metavar="N",
        help="Add a program by which a server gives up to N texts (2 to 8) of a language model a token in one "
        "run, where that is faster. No text's tokens change.",
    ),
)
@file_option(
    "--plan",
    "plan_file",
    help="Build the buckets of this plan, a file that edgecompile plan --output FILE wrote.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Build one program for all lengths, dynamic if the model can be, and measure nothing.",
)
@model_options
@file_option(
    "--work-dir",
    metavar="DIR",
    help="Keep intermediate files in this folder. If nothing has changed since the last build there, "
    "nothing is rebuilt. Default: a temporary folder.",
)
@click.option(
    "--keep-work",
    is_flag=True,
    help="Keep intermediate files, in NAME.work unless --work-dir is given.",
)
@force_option
@click.option("--verbose", "-v", is_flag=True, help="Print the default options too, at the start.")
@untested_torch_option
def command(
    session: Session,
    /,
    model: str,
    target: str,
    traffic: TrafficOptions,
    output: Path | None,
    plan: dict[str, Any],
    plan_file: Path | None,
    quick: bool,
    load: LoadOptions,
    work_dir: Path | None,
    keep_work: bool,
    force: bool,
    verbose: bool,
) -> None:
    """Compile MODEL for the lengths of its traffic, verify the result, and pack it.

    MODEL is a folder in Hugging Face layout (config.json and safetensors; the pooling of a
    modules.json is compiled in), FILE.py:FACTORY or PACKAGE.MODULE:FACTORY, or a .gguf, .onnx or saved .pt2 file.
    Nothing is fetched.

    The bundle's path is printed on stdout once it has been verified. If anything fails, nothing is
    written under that name.
    """
    from edgecompile.api.build import build
    from edgecompile.bundle.names import bundle_name, bundle_path
    from edgecompile.cli.terminal.build_view import show_build, show_options
    from edgecompile.targets.profile import load_target

    bundle = bundle_path(output or Path(bundle_name(model)))
    show_options(session.console, {"output": bundle}, everything=verbose)
    result = build(
        model,
        target=target,
        output=bundle,
        batch=load.batch or 1,
        plan=plan_file,
        quick=quick,
        load_options=replace(load, batch=None),
        work_dir=bundle.with_suffix(".work") if keep_work and work_dir is None else work_dir,
        force=force,
        progress=session.console,
        **vars(traffic),
        **plan,
    ).details
    show_build(session.console, load_target(target), result, plan["build_options"].backend)
    session.emit(result.to_json(), lambda: str(result.bundle_path))
