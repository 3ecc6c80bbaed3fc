"""``edgecompile verify-signature``: a bundle's signatures, checked as a device does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import file_option
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

_EPILOG = """\b
Example:
  edgecompile verify-signature minilm.ecb --trust ./trust
"""


@click.command(
    "verify-signature", cls=Command, epilog=_EPILOG, short_help="Check a bundle's signatures."
)
@click.argument("bundle", type=click.Path(path_type=Path))
@file_option(
    "--trust",
    metavar="DIR",
    help="Use the keys and the policy of this folder. Default: EDGECOMPILE_TRUST, or /etc/edgecompile/trust.",
)
def command(session: Session, bundle: Path, trust: Path | None) -> None:
    """Check BUNDLE's signatures as a device with this trust folder does, and hash every file.

    No code of the bundle is loaded. Exit codes 75 to 79 say why a device would refuse it.
    """
    from edgecompile.signing.sign import verify_signature

    document = verify_signature(bundle, trust)
    session.emit(document, lambda: _table(document))


def _table(document: dict[str, Any]) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts

    release = document["release"]
    return facts(
        [
            ("trust", document["trust"]),
            ("signed by", ", ".join(document["keys"])),
            ("release", "–" if release is None else str(release["number"])),
            ("sha256", f"{document['manifest_sha256']}  manifest.json"),
        ]
    )
