"""``edgecompile sbom``: a bundle's bill of materials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import file_option
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

_EPILOG = """\b
Examples:
  edgecompile sbom minilm.ecb
  edgecompile sbom minilm.ecb --output minilm.cdx.json
"""


@click.command("sbom", cls=Command, epilog=_EPILOG, short_help="List what a bundle is made of.")
@click.argument("bundle", type=click.Path(path_type=Path))
@file_option("--output", "-o", help="Write the bill of materials to this file as well.")
def command(session: Session, bundle: Path, output: Path | None) -> None:
    """Make the bill of materials of BUNDLE, as CycloneDX 1.6: weights, libraries, tokenizer and build tools.

    Every file is hashed first. The same bundle gives the same bill. --json prints the bill itself.
    """
    from edgecompile.bundle.materials import sbom
    from edgecompile.files import write_json

    document = sbom(bundle)
    if output is not None:
        write_json(output, document)
    session.emit(document, lambda: _table(document))


def _table(document: dict[str, Any]) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts, heading, stack, table

    rows = [
        (
            item["name"],
            item["type"],
            item.get("version", "–"),
            ", ".join(entry["license"]["id"] for entry in item.get("licenses", ())) or "–",
            item["hashes"][0]["content"][:12] if "hashes" in item else "–",
        )
        for item in document["components"]
    ]
    about = [
        ("model", document["metadata"]["component"]["name"]),
        ("serial", document["serialNumber"]),
    ]
    columns = ("component", "type", "version", "license", "sha256")
    return stack(facts(about), heading("Components"), table(columns, rows, left=4))
