"""``edgecompile sign``: a signature in a bundle."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import file_option, number_option
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.signing.sign import Signature

_EPILOG = """\b
Examples:
  edgecompile sign minilm.ecb --key ci.key
  edgecompile sign minilm.ecb --key ci.key --release 42 --floor 40
  edgecompile sign minilm.ecb --signer "openssl dgst -sha256 -sign hsm.key" --public-key hsm.pem
"""


@click.command("sign", cls=Command, epilog=_EPILOG, short_help="Sign a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@file_option("--key", help="Sign with this private key (PEM; P-256, P-384 or P-521).")
@click.option(
    "--signer",
    metavar="COMMAND",
    help="Sign by this command instead: it reads the bytes to sign on its standard input and writes the ECDSA "
    "signature in DER. It is split into arguments as a shell does, but no shell runs it.",
)
@file_option("--public-key", help="Give the public key of --signer (PEM).")
@click.option("--name", metavar="NAME", help="Write signatures/NAME.sig. Default: the key's name.")
@number_option(
    "--release", least=0, help="Write release.json with this release number, and sign it as well."
)
@number_option(
    "--floor",
    least=0,
    help="Let a device's store take no release below N once this one is confirmed there. Elsewhere the policy's "
    "floor counts. Default: 0.",
)
@click.option(
    "--expires",
    metavar="TIME",
    help="Let the release expire at this time, such as 2027-01-31T00:00:00Z; devices may ignore it.",
)
@click.option(
    "--note", metavar="TEXT", default="", show_default=False, help="Put a note into release.json."
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace an earlier release.json, and drop the signatures over it.",
)
def command(
    session: Session,
    bundle: Path,
    key: Path | None,
    signer: str | None,
    public_key: Path | None,
    name: str | None,
    release: int | None,
    floor: int | None,
    expires: str | None,
    note: str,
    force: bool,
) -> None:
    """Sign BUNDLE by OpenSSF Model Signing 1.0; each key adds a file to its signatures.

    Every file is hashed first. The signature covers all files, the manifest and release.json.
    """
    from edgecompile.signing.sign import sign

    result = sign(
        bundle,
        key,
        signer=None if signer is None else shlex.split(signer),
        public_key=public_key,
        name=name,
        release=release,
        floor=floor,
        expires=expires,
        note=note,
        force=force,
    )
    session.emit(result.to_json(), lambda: _table(result))


def _table(result: Signature) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts

    return facts(
        [
            ("signature", str(result.path)),
            ("key", result.key),
            ("release", "–" if result.release is None else str(result.release)),
            ("subject", f"{result.subject_sha256}  all files"),
            ("sha256", f"{result.manifest_sha256}  manifest.json"),
        ]
    )
