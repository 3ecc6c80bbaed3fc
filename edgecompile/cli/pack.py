"""``edgecompile pack``: a bundle from compiled libraries, verified before it gets its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import (
    bundle_option,
    cpu_backend_option,
    force_option,
    plan_file_option,
    seed_option,
    target_option,
    tokenizer_option,
    untested_torch_option,
    variants_option,
    work_dir_option,
)
from edgecompile.cli.options.model import model_argument, model_options
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from edgecompile.models.options import LoadOptions

_EPILOG = """\b
Example:
  edgecompile pack ./minilm --work-dir minilm.work --output minilm.ecb
"""


@click.command("pack", cls=Command, epilog=_EPILOG, short_help="Verify and write the bundle.")
@model_argument
@work_dir_option
@plan_file_option
@target_option
@variants_option
@bundle_option
@model_options
@cpu_backend_option
@seed_option
@tokenizer_option
@force_option
@untested_torch_option
def command(
    session: Session,
    model: str,
    work_dir: Path,
    plan_file: Path | None,
    target: str,
    variants: tuple[str, ...],
    output: Path | None,
    load: LoadOptions,
    backend: str,
    seed: int,
    keep_tokenizer: bool,
    force: bool,
) -> None:
    """Pack the libraries of DIR/artifacts with MODEL's weights into a bundle.

    The bundle is run against eager first; only one that agrees gets its name.
    """
    from edgecompile.cli.terminal.build_view import show_build
    from edgecompile.loaders.load import check_model
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.pipeline.work_files import read_plan
    from edgecompile.planning.request import PlanRequest

    check_model(model, load)
    chosen = read_plan(plan_file or work_dir / "plan.json")
    plan = PlanRequest(None, plan=chosen, backend=backend, seed=seed, keep_tokenizer=keep_tokenizer)
    request = BuildRequest(model, target, plan, load, work_dir, output, force)
    profile = request.check_target()
    from edgecompile.pipeline.single import pack_libraries

    packed = pack_libraries(request, variants, session.console)
    show_build(session.console, profile, packed, backend)
    session.emit(packed.to_json(), lambda: str(packed.bundle_path))
