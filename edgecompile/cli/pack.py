"""``edgecompile pack``: a bundle from compiled libraries, verified before it gets its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import (
    batch_option,
    model_argument,
    runtime_option,
    seed_option,
    target_option,
)
from edgecompile.cli.options.model import model_options, tokenizer_option
from edgecompile.cli.stages import (
    find_exports,
    load_for_plan,
    plan_option,
    read_plan,
    stage_lengths,
    work_dir_option,
)
from edgecompile.cli.terminal.session import Command, Session, output_options

if TYPE_CHECKING:
    from edgecompile.models.loaded import LoadOptions

__all__ = ["command"]

_EPILOG = """\b
Example:
  edgecompile pack ./minilm --work-dir minilm.work --output minilm.ecb
"""


@click.command("pack", cls=Command, epilog=_EPILOG, short_help="Verify and write the bundle.")
@model_argument
@work_dir_option
@plan_option
@target_option
@click.option(
    "--variant", "variants", multiple=True, metavar="NAME", help="Only this one of the target's."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="NAME.ecb",
    help="The bundle. Default: the model's name with .ecb, in the current folder.",
)
@batch_option
@model_options
@runtime_option
@seed_option
@tokenizer_option
@click.option("--force", is_flag=True, help="Replace a bundle of the same name.")
@output_options
@click.pass_obj
def command(
    session: Session,
    model: str,
    work_dir: Path,
    plan_file: Path | None,
    target: str,
    variants: tuple[str, ...],
    output: Path | None,
    batch: tuple[int, int],
    load: LoadOptions,
    runtime: str,
    seed: int,
    keep_tokenizer: bool,
    force: bool,
) -> None:
    """Pack the libraries of DIR/artifacts with MODEL's weights into a bundle.

    The bundle is run against eager first; only one that agrees gets its name.
    """
    from edgecompile.cli.build import bundle_name, next_step
    from edgecompile.loaders.load import check_model
    from edgecompile.targets.profile import load_target
    from edgecompile.units import format_bytes

    profile = load_target(target)
    check_model(model, load)
    chosen = [profile.variant(name) for name in variants] or None
    plan = read_plan(plan_file, work_dir)
    lengths = stage_lengths(work_dir)
    console = session.console

    folders = find_exports(plan, work_dir)
    with console.step("load what was compiled"):
        from edgecompile.backends.compilation import load_compiled
        from edgecompile.export.program import ExportedModel
        from edgecompile.export.store import ExportStore
        from edgecompile.narrowing.files import load_precision

        exported = [ExportedModel.load(folder) for folder in folders]
        compiled = load_compiled(
            exported,
            plan.buckets,
            profile,
            work_dir / "artifacts",
            keys=[folder.name for folder in folders],
            variants=chosen,
            precision=load_precision(work_dir),
            runtime=runtime,
        )
    loaded = load_for_plan(console, model, load, batch, plan.max_length)
    exports = ExportStore(loaded, work_dir / "exported")
    exports.require(plan.buckets, [folder.name for folder in folders])
    from edgecompile.pipeline.packing import pack_bundle
    from edgecompile.planning.generation_plan import require_native
    from edgecompile.planning.request import with_padding

    require_native(loaded, runtime=runtime)
    with console.step("verify and pack") as step:
        packed = pack_bundle(
            loaded,
            with_padding(plan, loaded),
            compiled,
            output or Path(bundle_name(model)),
            lengths=lengths,
            seed=seed,
            force=force,
            tokenizer=keep_tokenizer,
            step=step,
        )
    console.say_notes(packed.notes)
    console.summary(
        [
            ("size", format_bytes(packed.size_bytes)),
            ("checks", f"{len(packed.verify.results)} agree with eager"),
            ("sha256", f"{packed.sha256}  manifest.json"),
        ]
    )
    console.say(f"\n  {next_step(profile, packed.path, runtime)}")
    document = {
        "bundle": str(packed.path),
        "size_bytes": packed.size_bytes,
        "sha256": packed.sha256,
        "verify": packed.verify.to_json(),
        "notes": list(packed.notes),
    }
    session.emit(document, lambda: str(packed.path))
