"""``edgecompile build``: from a model and its lengths to a verified bundle."""

from __future__ import annotations

from pathlib import Path

import click

from edgecompile.cli.options import (
    batch_option,
    check_traffic_options,
    jobs_option,
    lengths_options,
    max_length_option,
    mode_option,
    model_argument,
    read_traffic,
    seed_option,
    target_option,
    threads_option,
)
from edgecompile.cli.session import Command, Session, output_options

__all__ = ["bundle_name", "command"]

_EPILOG = """\b
Examples:
  edgecompile build ./minilm --target cpu-x86-64 --lengths lengths.txt
  edgecompile build ./minilm --texts queries.txt --max-length 256 --output search.ecb
  edgecompile build net.py:make_model --lengths counts.csv --batch 1:8 --keep-work
  cut -f3 access.log | edgecompile build ./minilm --lengths - --json
"""


@click.command("build", cls=Command, epilog=_EPILOG, short_help="Build and verify a bundle.")
@model_argument
@target_option
@lengths_options
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="NAME.ecb",
    help="The bundle. Default: the model's name with .ecb, in the current folder.",
)
@click.option(
    "--max-buckets",
    type=click.IntRange(min=1),
    metavar="K",
    help="At most so many programs. Default: as many as pay.",
)
@max_length_option
@batch_option
@click.option(
    "--precision",
    type=click.Choice(["fp32"]),
    default="fp32",
    show_default=True,
    help="Of weights and arithmetic.",
)
@mode_option
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the stages leave their files. Default: a temporary folder.",
)
@click.option("--keep-work", is_flag=True, help="Keep them; without --work-dir in NAME.work.")
@threads_option
@jobs_option
@seed_option
@click.option("--force", is_flag=True, help="Replace a bundle of the same name.")
@output_options
@click.pass_obj
def command(
    session: Session,
    model: str,
    target: str,
    lengths: str | None,
    texts: str | None,
    tokenizer: Path | None,
    output: Path | None,
    max_buckets: int | None,
    max_length: int | None,
    batch: tuple[int, int],
    precision: str,
    mode: str,
    work_dir: Path | None,
    keep_work: bool,
    threads: int | None,
    jobs: int | None,
    seed: int,
    force: bool,
) -> None:
    """Compile MODEL for the lengths of its traffic, verify the result, and pack it.

    MODEL is a folder in Hugging Face layout (config.json and safetensors; the pooling of a
    modules.json is compiled in), FILE.py:FACTORY or PACKAGE.MODULE:FACTORY, or a saved .pt2.
    Nothing is ever fetched.

    The bundle's path is printed on stdout once it has been verified. If anything fails, no bundle
    stands under that name.
    """
    check_traffic_options(lengths, texts, tokenizer, model)

    from edgecompile.bundle import bundle_path
    from edgecompile.pipeline import BuildRequest, build
    from edgecompile.units import format_bytes, format_duration

    console = session.console
    bundle = bundle_path(output or Path(bundle_name(model)))
    if keep_work and work_dir is None:
        work_dir = bundle.with_suffix(".work")
    console.options(
        {
            "model": model,
            "target": target,
            "lengths": lengths or texts,
            "output": bundle,
            "programs": f"at most {max_buckets}" if max_buckets else "as many as pay",
            "longest": max_length or "the model's limit, or the longest seen",
            "batch": f"{batch[0]}" if batch[0] == batch[1] else f"{batch[0]} to {batch[1]}",
            "precision": precision,
            "mode": mode,
            "work folder": work_dir or "temporary",
            "threads": threads or "all",
            "jobs": jobs or "one for each CPU",
            "seed": seed,
        }
    )
    with console.step("read the lengths") as step:
        distribution = read_traffic(lengths, texts, tokenizer, model)
        summary = distribution.summary()
        step.note(
            f"{summary.n:,} inputs, {summary.min} to {summary.max}, median {summary.p50}, "
            f"p99 {summary.p99}"
        )
    result = build(
        BuildRequest(
            model=model,
            target=target,
            lengths=distribution,
            output=bundle,
            max_buckets=max_buckets,
            max_length=max_length,
            batch=batch,
            precision=precision,
            mode=mode,
            work_dir=work_dir,
            threads=threads,
            jobs=jobs,
            seed=seed,
            force=force,
        ),
        console,
    )
    for note in result.notes:
        console.say(f"  note: {note}")
    console.summary(
        [
            ("size", format_bytes(result.size_bytes)),
            ("programs", f"{len(result.plan.buckets)}"),
            ("time", format_duration(sum(result.seconds.values()))),
            ("sha256", f"{result.sha256}  manifest.json"),
        ]
    )
    session.emit(result.to_json(), lambda: str(result.bundle_path))


def bundle_name(model: str) -> str:
    """What to call a model's bundle: its folder, its factory or its file, without the rest."""
    from edgecompile.bundle import manifest_name

    path, _, factory = model.rpartition(":")
    if path and factory:
        name = factory.rpartition(".")[2]
    else:
        name = Path(model).expanduser().resolve().name.removesuffix(".pt2")
    return manifest_name(name)
