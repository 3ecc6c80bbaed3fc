"""``edgecompile verify``: a bundle against eager, or against its golden vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import file_option, seed_option, untested_torch_option
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.buckets.ranges import Bucket
    from edgecompile.bundle.verdict import VerifyReport

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
@file_option("--report", help="Write the table as a page.")
@untested_torch_option
def command(
    session: Session, bundle: Path, model: str | None, seed: int, report: Path | None
) -> None:
    """Run BUNDLE through its own runtime, with every variant that this host can run.

    All files are hashed first. The process that runs the bundle uses the runtime inside the
    bundle, and loads torch only for a bundle of --backend torch.
    """
    from edgecompile.api.verify import verify
    from edgecompile.bundle.verdict import check_report

    console = session.console
    result = verify(bundle, model, seed=seed, check=False, progress=console)
    if report is not None:
        console.say(f"wrote {result.write_report(report)}")
    session.emit(result.to_json(), lambda: _table(result.report, result.buckets))
    check_report(result.report)


def _table(report: VerifyReport, buckets: tuple[Bucket, ...]) -> RenderableType:
    from rich.text import Text

    from edgecompile.cli.terminal.tables import stack, table

    verdict = "agrees" if report.ok else "DIFFERS"
    lines = [
        f"{verdict}: {sum(result.ok for result in report.results)} of {len(report.results)} cases, "
        + (f"{report.lengths}, " if report.lengths else "")
        + f"allowed is {report.rule()}"
    ]
    if report.texts:
        good, ties = sum(t.ok for t in report.texts), sum(t.ties for t in report.texts)
        lines.append(
            f"{good} of {len(report.texts)} texts were generated token by token as by the model"
            + (f", {ties} tokens with one as likely in their place" if ties else "")
        )
    lines += [*report.not_run(), *report.notes]
    return stack(table(*report.table(buckets), left=3), Text("\n".join(lines)))
