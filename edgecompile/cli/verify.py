"""``edgecompile verify``: a bundle against eager, or against its golden vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import seed_option
from edgecompile.cli.terminal.session import Command, Session, output_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.buckets.costs.curves import Mode
    from edgecompile.buckets.ranges import Bucket
    from edgecompile.bundle.cases import Case
    from edgecompile.bundle.verdict import VerifyReport
    from edgecompile.runtime.format.manifest import Manifest

__all__ = ["command"]

_EPILOG = """\b
Examples:
  edgecompile verify minilm.ecb
  edgecompile verify minilm.ecb --model ./minilm --seed 7 --report verify.html
"""


@click.command("verify", cls=Command, epilog=_EPILOG, short_help="Compare a bundle with eager.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="MODEL",
    help="Run this model eagerly and compare on fresh inputs. Default: the bundle's golden vectors.",
)
@seed_option
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the table as a page."
)
@output_options
@click.pass_obj
def command(
    session: Session, bundle: Path, model: str | None, seed: int, report: Path | None
) -> None:
    """Run BUNDLE through its own runtime, with every variant that this host can run.

    All files are hashed first. The process that runs the bundle uses the runtime inside the
    bundle, and never loads torch.
    """
    from edgecompile.bundle.verdict import check_report
    from edgecompile.bundle.verify import verify_bundle
    from edgecompile.precision import min_cosine
    from edgecompile.runtime.format.folder import BundleFolder

    console = session.console
    with console.step("hash the files") as step:
        folder = BundleFolder(str(bundle))
        try:
            folder.check_hashes()
            manifest = folder.manifest
        finally:
            folder.close()
        step.note(f"{len(manifest.files)} files as recorded")
    buckets = _buckets(manifest)
    if model is None:
        with console.step("read the golden vectors") as step:
            cases, texts = _golden_cases(bundle, manifest), _golden_texts(bundle, manifest)
            step.note(f"{len(cases)} cases")
    else:
        with console.step("run eager") as step:
            cases, texts = _eager_cases(model, manifest, buckets, seed)
            step.note(f"{len(cases)} cases")
    with console.step("run the bundle"):
        result = verify_bundle(
            bundle,
            cases,
            [variant.name for variant in manifest.variants],
            manifest.tolerance,
            min_cosine=min_cosine(manifest.precision),
            texts=texts,
        )
    if report is not None:
        from edgecompile.cli.terminal.output import write_text
        from edgecompile.report.pages import render_page, verify_section

        facts = sorted(manifest.built_by.items())
        write_text(
            report, render_page(manifest.name, [verify_section(result, buckets)], facts=facts)
        )
        console.say(f"wrote {report}")
    session.emit({"bundle": str(bundle), **result.to_json()}, lambda: _table(result, buckets))
    check_report(result)


def _buckets(manifest: Manifest) -> tuple[Bucket, ...]:
    """The manifest's buckets, the length axis first."""
    from edgecompile.buckets.ranges import AxisRange, Bucket

    buckets = []
    for spec in manifest.buckets:
        axes = {
            name: AxisRange(extent.lo, extent.hi, extent.hint or extent.hi)
            for name, extent in spec.axes.items()
        }
        order = sorted(axes, key=lambda name: name != manifest.length_axis)
        mode: Mode = "pad" if spec.mode == "pad" else "exact"
        buckets.append(Bucket(mode, tuple((name, axes[name]) for name in order)))
    return tuple(buckets)


def _golden_cases(bundle: Path, manifest: Manifest) -> list[Case]:
    from edgecompile.bundle.cases import Case
    from edgecompile.runtime.format.golden import read_case

    cases = []
    for item in manifest.golden:
        path = bundle / item.file
        with path.open("rb") as stream:
            found = read_case(stream.fileno(), str(path), manifest)
        cases.append(Case(item.bucket, item.case, found.inputs, found.outputs))
    return cases


def _golden_texts(bundle: Path, manifest: Manifest) -> bytes | None:
    from edgecompile.runtime.generation.golden import FILE

    return (bundle / FILE).read_bytes() if FILE in manifest.files else None


def _eager_cases(
    model: str, manifest: Manifest, buckets: tuple[Bucket, ...], seed: int
) -> tuple[list[Case], bytes | None]:
    from edgecompile.bundle.cases import length_cases, make_cases
    from edgecompile.errors import VerificationError
    from edgecompile.loaders.load import load_model
    from edgecompile.models.loaded import LoadOptions

    batch = manifest.axes.get("batch")
    # The bundle says how its model was loaded: for which task, with which pooling.
    load = LoadOptions.from_json(manifest.plan.get("load"))
    loaded = load_model(model, load, batch=None if batch is None else (batch.lo, batch.hi))
    for what, ours, theirs in (
        ("inputs", manifest.inputs, loaded.inputs),
        ("outputs", manifest.outputs, loaded.outputs),
    ):
        names = [spec.name for spec in ours], [spec.name for spec in theirs]
        if names[0] != names[1]:
            raise VerificationError(
                f"{loaded.name} isn't the model of this bundle: its {what} are "
                f"{', '.join(names[1])}, those of the bundle {', '.join(names[0])}"
            )
    if loaded.generation is None:
        cases = list(make_cases(loaded, buckets, seed=seed))
        if manifest.precision == "fp32":
            cases += length_cases(loaded, buckets, seed=seed)
        return cases, None
    from edgecompile.bundle.generation import golden_texts

    loaded = loaded.with_longest(max(bucket.hi for bucket in buckets))
    rows = manifest.axes.get("source")
    if rows is not None:
        loaded = loaded.with_sources(rows.lo, rows.hi)
    texts = golden_texts(loaded, seed=seed)
    return list(make_cases(loaded, buckets, seed=seed)), texts


def _table(report: VerifyReport, buckets: tuple[Bucket, ...]) -> RenderableType:
    from rich.text import Text

    from edgecompile.cli.terminal.console import stack, table
    from edgecompile.units import format_share

    tolerance = report.tolerance
    rows = [
        (
            result.variant,
            f"{result.bucket}: {buckets[result.bucket].lo}–{buckets[result.bucket].hi}",
            result.case,
            f"{result.max_abs_error:.1e}",
            format_share(result.max_abs_error / tolerance.limit(result.scale)),
            "–" if result.cosine is None else f"{result.cosine:.6f}",
            "ok" if result.ok else "FAILED",
        )
        for result in report.listed
    ]
    columns = (
        "variant",
        "bucket",
        "case",
        "difference",
        "of allowed",
        "cosine",
        "",
    )
    verdict = "agrees" if report.ok else "DIFFERS"
    lines = [
        f"{verdict}: {sum(result.ok for result in report.results)} of {len(report.results)} cases, "
        + (f"{report.lengths}, " if report.lengths else "")
        + f"allowed is {tolerance.atol:g} + {tolerance.rtol:g} · max |want|"
        + ("" if report.min_cosine is None else f" and a cosine of {report.min_cosine:g} or more")
    ]
    if report.texts:
        good, ties = sum(t.ok for t in report.texts), sum(t.ties for t in report.texts)
        lines.append(
            f"{good} of {len(report.texts)} texts were generated token by token as by the model"
            + (f", {ties} tokens with one as likely in their place" if ties else "")
        )
    lines += report.not_run()
    return stack(table(columns, rows, left=3), Text("\n".join(lines)))
