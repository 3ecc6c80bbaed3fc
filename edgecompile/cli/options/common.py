"""Options of several commands that stand for themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from edgecompile.cli.options import Decorator, add_options
from edgecompile.toolchain.torch_versions import UNTESTED

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
    help="Use programs of dynamic length (exact), or of fixed length with padded inputs (pad). auto "
    "takes whichever suits the model.",
)

max_length_option = number_option(
    "--max-length", help="Serve lengths up to N. Default: the model's limit, or the longest seen."
)

_CPU_HELP = (
    "On a CPU, cpu calls the library in the bundle; torch uses torch's kernels, for models that need kernels "
    "which this library lacks, on hosts with the same version of torch."
)


def backend_options(*more: str) -> tuple[Decorator, Decorator]:
    """``--backend``, and its old spelling for :func:`read_backend`; ``more`` are backends for GPUs."""
    help = f"Choose how the model runs. {_CPU_HELP}"
    if more:
        help += (
            " On a GPU, tensorrt uses a TensorRT engine that the device builds from the bundle's ONNX; triton "
            "uses programs that are compiled here, without TensorRT, for every GPU of the target's kind; "
            "both uses these programs until the engine is built, and then the faster of the two."
        )
    help += " auto is cpu" + (", or tensorrt for a target with a GPU." if more else ".")
    choices = click.Choice(["auto", "cpu", "torch", *more])
    return (
        click.option("--backend", type=choices, default="auto", help=help),
        click.option("--runtime", type=click.Choice(["native", "torch"]), hidden=True),
    )


def read_backend(backend: str, runtime: str | None) -> str:
    """The backend that both spellings of the option name.

    Raises:
        UsageError: they contradict each other.
    """
    if runtime is None:
        return backend
    from edgecompile.planning.options import join_runtime

    chosen = join_runtime(runtime, backend)
    context = click.get_current_context()
    context.obj.console.warn(
        "--runtime is the old spelling of --backend",
        f"give --backend {'cpu' if runtime == 'native' else runtime}",
    )
    return chosen


cpu_backend_option = add_options("backend", read_backend, *backend_options())

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
    "RAY_ADDRESS (ray). Costs are measured here, or on a machine of the cluster that declares itself the target.",
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
    help="Leave out the model's tokenizer.json: the device is given token ids.",
)

work_dir_option = file_option(
    "--work-dir", "-w", metavar="DIR", required=True, help="Keep the stages' files in this folder."
)

plan_file_option = file_option(
    "--plan", "plan_file", help="Use the buckets of this plan. Default: DIR/plan.json."
)


def _allow_untested_torch(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        os.environ[UNTESTED] = "1"  # of the processes that this one starts as well


untested_torch_option = click.option(
    "--untested-torch",
    is_flag=True,
    envvar=UNTESTED,
    expose_value=False,
    callback=_allow_untested_torch,
    help="Allow a version of torch, or of Triton with it, that edgecompile refuses. Its programs are verified, but "
    "its code generator may have changed.",
)

variants_option = click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    help="Use only this variant of the target; may be given several times.",
)
