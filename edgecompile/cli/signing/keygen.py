"""``edgecompile keygen``: a key pair that signs bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

_EPILOG = """\b
Example:
  edgecompile keygen ci
"""


@click.command("keygen", cls=Command, epilog=_EPILOG, short_help="Make a key pair to sign with.")
@click.argument("name", type=click.Path(path_type=Path))
def command(session: Session, name: Path) -> None:
    """Write a key pair of the curve P-256: NAME.key, which is secret, and NAME.pem.

    NAME.key has no password; only you can read it. NAME.pem belongs in the trust folder of devices.
    """
    from edgecompile.signing.keys import generate_key, read_public_key

    private, public = generate_key(name)
    document = {"private": str(private), "public": str(public), "key": read_public_key(public).hint}

    def table() -> RenderableType:
        from edgecompile.cli.terminal.tables import facts

        return facts([("private", str(private)), ("public", str(public)), ("key", document["key"])])

    session.emit(document, table)
