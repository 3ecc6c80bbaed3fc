"""``edgecompile image``: bundles as a container image."""

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
  edgecompile image minilm.ecb
  edgecompile image minilm-x86.ecb minilm-arm.ecb --push registry.example/minilm:3
  edgecompile image minilm.ecb --base python:3.12-slim-bookworm
  edgecompile image minilm.ecb --only-bundle
"""


@click.command("image", cls=Command, epilog=_EPILOG, short_help="Write a container image.")
@click.argument(
    "bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@file_option(
    "--output",
    "-o",
    metavar="DIR",
    help="Write the OCI image layout to this folder.  [default: the first bundle's name, with .oci]",
)
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    type=click.Choice(["linux/amd64", "linux/arm64"]),
    help="Write this platform's image; several make an index.  [default: those of the bundles]",
)
@click.option(
    "--base",
    default="mmdebstrap:bookworm",
    metavar="IMAGE",
    help="Build on this image, which has Python: a name in a registry, or whatever skopeo reads "
    "(oci:DIR, containers-storage:NAME). 'mmdebstrap:SUITE' makes one of Debian's packages, without "
    "a shell.",
)
@click.option(
    "--push",
    metavar="NAME",
    help="Push the image with skopeo to this name, as in registry.example/minilm:3.",
)
@click.option(
    "--annotation",
    "annotations",
    multiple=True,
    metavar="KEY=VALUE",
    help="Annotate the image, as in org.opencontainers.image.source=URL. May be given several times.",
)
@click.option("--plain-http", is_flag=True, help="Use registries without TLS.")
@click.option(
    "--refresh",
    is_flag=True,
    help="Download the current packages of Debian and PyPI, instead of those in the cache.",
)
@click.option(
    "--only-bundle",
    is_flag=True,
    help="Write the bundle alone, with each large file as a layer: for volumes, and for a store's install.",
)
@click.option("--force", is_flag=True, help="Replace an image layout of the same name.")
def command(
    session: Session,
    bundles: tuple[Path, ...],
    output: Path | None,
    platforms: tuple[str, ...],
    base: str,
    push: str | None,
    annotations: tuple[str, ...],
    plain_http: bool,
    refresh: bool,
    only_bundle: bool,
    force: bool,
) -> None:
    """Write an image that serves BUNDLE, in the OCI's layout, and push it if asked to.

    Its layers are the base, Python's packages, the weights, edgecompile's runtime and server, and the
    bundle's code: an update of the code only moves the last ones. The image runs as user 10001 and writes
    nothing. The same parts give the same bytes. Bundles for several architectures make an index.
    """
    from edgecompile.image.image import ImageRequest, make_image

    pairs = dict(item.partition("=")[::2] for item in annotations)
    if wrong := [item for item in annotations if not item.partition("=")[0] or "=" not in item]:
        raise click.BadParameter(f"{wrong[0]!r} isn't KEY=VALUE", param_hint="--annotation")
    request = ImageRequest(
        bundles, output or Path(bundles[0]).absolute().with_suffix(".oci"), platforms, base, push, pairs,
        plain_http, refresh, force, only_bundle,
    )  # fmt: skip
    document = make_image(request, session.console)
    session.emit(document, lambda: _table(document))


def _table(document: dict[str, Any]) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts, heading, stack, table
    from edgecompile.units import format_bytes

    rows = [
        (image["platform"], layer["title"], format_bytes(layer["size"]), layer["digest"][7:19])
        for image in document["images"]
        for layer in image["layers"]
    ]
    about = [
        ("image", document["path"]),
        ("digest", document["digest"]),
        *([("pushed to", document["pushed"])] if document["pushed"] else []),
        *[(i["platform"], format_bytes(i["bytes"])) for i in document["images"]],
    ]
    columns = ("platform", "layer", "size", "sha256")
    return stack(facts(about), heading("Layers"), table(columns, rows, left=2))
