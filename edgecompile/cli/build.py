"""``edgecompile build``: from a model and its lengths to a verified bundle."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import (
    backend_option,
    batch_option,
    check_max_error,
    check_precision,
    check_runtime_options,
    check_traffic_options,
    jetpack_option,
    jobs_option,
    model_argument,
    precision_options,
    runtime_option,
    sample_texts,
    seed_option,
    target_option,
    threads_option,
)
from edgecompile.cli.options.model import model_options, tokenizer_option
from edgecompile.cli.options.plan import plan_options, read_sizes, traffic_options
from edgecompile.cli.terminal.session import Command, Session, output_options

if TYPE_CHECKING:
    from edgecompile.buckets.plan import BucketPlan
    from edgecompile.models.loaded import LoadOptions
    from edgecompile.targets.profile import TargetProfile

__all__ = ["bundle_name", "command"]

_EPILOG = """\b
Examples:
  edgecompile build ./minilm --target cpu-x86-64 --lengths lengths.txt
  edgecompile build ./minilm --texts queries.txt --max-length 256 --output search.ecb
  edgecompile build ./minilm --lengths lengths.txt --quick
  edgecompile build ./minilm --lengths lengths.txt --plan plan.json
  edgecompile build ./minilm --texts queries.txt --precision auto --max-error 1%
  edgecompile build net.py:make_model --lengths counts.csv --batch 1:8 --keep-work
  edgecompile build ./minilm --target jetson-orin-nano --texts queries.txt --jetpack 6.2
  edgecompile build ./minilm --target my-gpu.toml --texts queries.txt --backend torch-tensorrt
  cut -f3 access.log | edgecompile build ./minilm --lengths - --json
"""


@click.command("build", cls=Command, epilog=_EPILOG, short_help="Build and verify a bundle.")
@model_argument
@target_option
@traffic_options
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="NAME.ecb",
    help="The bundle. Default: the model's name with .ecb, in the current folder.",
)
@plan_options
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Build the buckets of this plan, as edgecompile plan --output FILE wrote it.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Build one program for all lengths, dynamic if the model can be; measure nothing.",
)
@batch_option
@model_options
@precision_options
@jetpack_option
@backend_option
@runtime_option
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for intermediate files. If nothing has changed since the last build there, nothing "
    "is rebuilt. Default: a temporary folder.",
)
@click.option(
    "--keep-work",
    is_flag=True,
    help="Keep intermediate files, in NAME.work unless --work-dir is given.",
)
@click.option(
    "--no-emulation",
    is_flag=True,
    help="Don't use qemu: variants that this machine can't run are packed unverified.",
)
@threads_option
@jobs_option
@seed_option
@tokenizer_option
@click.option("--force", is_flag=True, help="Replace a bundle of the same name.")
@click.option("--verbose", "-v", is_flag=True, help="At the start, print the default options too.")
@output_options
@click.pass_obj
def command(
    session: Session,
    /,
    model: str,
    target: str,
    lengths: str | None,
    texts: str | None,
    tokenizer: Path | None,
    stats: tuple[Path, ...],
    output: Path | None,
    plan_file: Path | None,
    batch: tuple[int, int],
    load: LoadOptions,
    precision: str | None,
    max_error: float | None,
    jetpack: str | None,
    backend: str,
    runtime: str,
    work_dir: Path | None,
    keep_work: bool,
    seed: int,
    keep_tokenizer: bool,
    no_emulation: bool,
    force: bool,
    verbose: bool,
    **wanted: Any,
) -> None:
    """Compile MODEL for the lengths of its traffic, verify the result, and pack it.

    MODEL is a folder in Hugging Face layout (config.json and safetensors; the pooling of a
    modules.json is compiled in), FILE.py:FACTORY or PACKAGE.MODULE:FACTORY, or a saved .pt2.
    Nothing is ever fetched.

    The bundle's path is printed on stdout once it has been verified. If anything fails, nothing is
    written under that name.
    """
    check_max_error(precision, max_error)
    plan = _given_plan(plan_file, wanted)
    profile = _check_gpu(target, precision, jetpack, backend)
    check_runtime_options(runtime, precision, gpu=profile.gpu is not None)
    from edgecompile.loaders.load import check_model
    from edgecompile.targets.gpu import GPU_PRECISION

    check_model(model, load)
    if not stats and (lengths is not None or texts is not None or tokenizer is not None):
        check_traffic_options(lengths, texts, tokenizer, model)

    gpu = profile.gpu is not None

    from edgecompile.bundle.staging import bundle_path

    console = session.console
    bundle = bundle_path(output or Path(bundle_name(model)))
    if keep_work and work_dir is None:
        work_dir = bundle.with_suffix(".work")
    sizes = f"{batch[0]}" if batch[0] == batch[1] else f"{batch[0]} to {batch[1]}"
    release = jetpack or (profile.jetpacks[0] if profile.jetpacks else "–")
    traffic = lengths or texts or ", ".join(str(path) for path in stats)
    # A value, and whether somebody asked for it: what was left as it is can be read with --verbose.
    options: dict[str, tuple[object, bool]] = {
        "model": (model, True),
        "target": (target, True),
        "lengths": (traffic or "every batch size once, if no length varies", bool(traffic)),
        "output": (bundle, True),
        "programs": (
            f"those of {plan_file}" if plan_file else _programs(wanted),
            bool(plan_file or wanted["quick"] or wanted["buckets"] or wanted["max_buckets"]),
        ),
        "longest": _or(wanted["max_length"], "the model's limit, or the longest seen"),
        "batch": (sizes, batch != (1, 1)),
        "precision": _or(precision, GPU_PRECISION if gpu else "fp32"),
        "JetPack": (release, jetpack is not None),
        "task": _or(load.task, "what the model says"),
        "engine": (backend, backend != "auto"),
        "runtime": (runtime, runtime != "native"),
        "mode": (wanted["mode"], wanted["mode"] != "auto"),
        "padding": (
            "assumed to be harmless" if wanted["assume_paddable"] else "only where it is proven",
            wanted["assume_paddable"],
        ),
        "costs": (_costs(plan_file, gpu, wanted), wanted["calibration"] is not None),
        "work folder": _or(work_dir, "temporary"),
        "threads": _or(wanted["threads"], "all"),
        "jobs": _or(wanted["jobs"], "one for each CPU"),
        "seed": (seed, seed != 0),
    }
    console.options({name: value for name, (value, asked) in options.items() if asked or verbose})
    with console.step("read the lengths") as step:
        distribution, joint = read_sizes(
            lengths,
            texts,
            tokenizer,
            model,
            stats,
            max_length=wanted["max_length"],
            load=(load, batch),
        )
        summary = distribution.summary()
        step.note(
            f"{summary.n:,} inputs, {summary.min} to {summary.max}, median {summary.p50}, "
            f"p99 {summary.p99}"
        )
    samples = sample_texts(texts, tokenizer, model)
    key = None
    if work_dir is not None and not wanted["measure_again"]:
        from edgecompile.pipeline.stamp import build_key, find_built, write_stamp

        with console.step("look for changes"):
            key = build_key(
                model,
                target,
                {
                    "lengths": distribution.to_json(),
                    "joint": None if joint is None else joint.to_json(),
                    "batch": batch,
                    "load": asdict(load),
                    "tokenizer": keep_tokenizer,
                    "precision": [precision, max_error, jetpack, backend, runtime],
                    "seed": seed,
                    "emulate": not no_emulation,
                    **{name: value for name, value in wanted.items() if name != "calibration"},
                },
                {
                    "calibration": wanted["calibration"],
                    "plan": plan_file,
                    "texts": None if samples is None else samples.file,
                    "tokenizer": None if samples is None else samples.tokenizer,
                },
            )
            built = None if key is None else find_built(work_dir, key, bundle)
        if built is not None:
            console.say(f"nothing has changed: {bundle} is what would be built")
            session.emit({**built, "unchanged": True}, lambda: str(bundle))
            return

    from edgecompile.pipeline.pipeline import BuildRequest, build
    from edgecompile.planning.request import PlanRequest
    from edgecompile.units import format_bytes, format_duration

    result = build(
        BuildRequest(
            model=model,
            target=target,
            plan=PlanRequest(distribution, joint, plan=plan, cut=texts is not None, **wanted),
            output=bundle,
            batch=batch,
            precision=precision,
            max_error=max_error,
            texts=samples,
            work_dir=work_dir,
            seed=seed,
            force=force,
            tokenizer=keep_tokenizer,
            jetpack=jetpack,
            backend=backend,
            load=load,
            runtime=runtime,
            emulate=not no_emulation,
        ),
        console,
    )
    if work_dir is not None and key is not None:
        write_stamp(work_dir, key, result.bundle_path, result.to_json())
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
    session.emit(result.to_json(), lambda: str(result.bundle_path))


def _check_gpu(
    target: str, precision: str | None, jetpack: str | None, backend: str
) -> TargetProfile:
    """The target; refuses what doesn't fit it, before anything is read."""
    from edgecompile.targets.profile import load_target

    profile = load_target(target)
    check_precision(precision, gpu=profile.gpu is not None, target=profile.name)
    if jetpack is not None and jetpack not in profile.jetpacks:
        known = " or ".join(profile.jetpacks)
        text = f"choose {known}" if known else "it is for targets such as jetson-orin"
        raise click.UsageError(
            f"Target {profile.name} does not support --jetpack {jetpack}: {text}."
        )
    if backend == "torch-tensorrt":
        from edgecompile.targets.gpu import GPU_PRECISION
        from edgecompile.tensorrt.torch_tensorrt_check import need_torch_tensorrt

        need_torch_tensorrt(profile, precision or GPU_PRECISION)
    return profile


def _given_plan(plan_file: Path | None, wanted: Mapping[str, Any]) -> BucketPlan | None:
    """The plan of --plan; refuses options that would decide what is decided already."""
    deciding = {
        "--buckets": wanted["buckets"],
        "--max-buckets": wanted["max_buckets"],
        "--max-size": wanted["max_size"],
        "--max-build-time": wanted["max_build_s"],
        "--price-per-bucket": wanted["price_per_bucket"],
        "--runs": wanted["runs"],
        "--calibration": wanted["calibration"],
        "--measure-again": wanted["measure_again"] or None,
    }
    fixed = ["--plan"] if plan_file is not None else []
    fixed += ["--quick"] if wanted["quick"] else []
    given = fixed[1:] + [name for name, value in deciding.items() if value is not None]
    if plan_file is not None and wanted["mode"] != "auto":
        given.append("--mode")
    if fixed and given:
        raise click.UsageError(
            f"{', '.join(given)}: {fixed[0]} leaves nothing to choose. Give one or the other."
        )
    if plan_file is None:
        return None
    from edgecompile.cli.stages import read_plan

    return read_plan(plan_file, plan_file.parent)


def _costs(plan_file: Path | None, gpu: bool, wanted: Mapping[str, Any]) -> str:
    """Where costs come from, in words."""
    if plan_file is not None:
        return f"those of {plan_file}"
    if wanted["quick"]:
        return "none, as there is nothing to choose"
    return str(wanted["calibration"] or ("a roofline of the profile" if gpu else "measured here"))


def _or(value: object, default: str) -> tuple[object, bool]:
    """An option's value or what its default means, and whether it was given."""
    return (default, False) if value is None else (value, True)


def next_step(profile: TargetProfile, bundle: Path, runtime: str) -> str:
    """What to type once there is a bundle for these devices."""
    import platform

    from edgecompile.runtime.cpu.host import architecture

    here = profile.gpu is None and architecture(platform.machine()) in profile.archs
    path = shlex.quote(str(bundle) if here else bundle.name)
    command = f"python3 {path} {'selftest' if profile.gpu is None else 'finish'}"
    if runtime == "torch":
        command = f"python3 -m edgecompile.torch_runtime selftest {path}"
    if here:
        return f"Next: {command}"
    return f"Next: copy {shlex.quote(str(bundle))} to the device, and there: {command}"


def _programs(wanted: Mapping[str, Any]) -> str:
    """How many programs there may be, in words."""
    if wanted["quick"]:
        return "1"
    if wanted["buckets"]:
        return f"{wanted['buckets']}"
    return f"at most {wanted['max_buckets']}" if wanted["max_buckets"] else "as many as pay"


def bundle_name(model: str) -> str:
    """What to call a model's bundle: its folder, its factory or its file, without the rest."""
    from edgecompile.bundle.writer import manifest_name

    path, _, factory = model.rpartition(":")
    if path and factory:
        name = factory.rpartition(".")[2]
    else:
        name = Path(model).expanduser().resolve().name.removesuffix(".pt2")
    return manifest_name(name)
