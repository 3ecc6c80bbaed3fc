"""Makes an image of bundles: one for each architecture, and an index of them."""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import edgecompile
from edgecompile.errors import BundleWriteError, ImageError, RegistryError
from edgecompile.image import base as bases
from edgecompile.image.layers import Blobs, Layer, folder_entries
from edgecompile.image.layout import Layout, find_date
from edgecompile.image.parts import BUNDLE, list_names, write_parts
from edgecompile.progress import NULL_PROGRESS, Progress
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import AOTI_CPU
from edgecompile.runtime.format.trust.release import RELEASE_NAME, parse_release
from edgecompile.runtime.store.image import ARCHITECTURES

#: What is installed beside the runtime; tests compare it with the extras ``server`` and ``grpc`` in pyproject.toml.
SERVER_REQUIREMENTS = (
    "numpy>=1.26,<3",
    "grpcio>=1.66,<2",
    "httptools>=0.6.4,<1",
    "jinja2>=3.1.6,<4",
    "orjson>=3.10,<4",
    "protobuf>=5.26,<8",
    "uvicorn>=0.38,<1",
    "uvloop>=0.21,<1",
)
#: Its package for downloads, which it requires, isn't used.
ALONE = ("tokenizers>=0.20,<1",)
DEFAULT_BASE = "mmdebstrap:bookworm"
_OWN = "opt/edgecompile"
_SERVER = "python3 -m edgecompile.server --host 0.0.0.0 --grpc-port 8001"
_COMMAND = {
    "User": "10001:10001",
    "Entrypoint": _SERVER.split(),
    "Cmd": [f"/{BUNDLE}"],
    "ExposedPorts": {"8000/tcp": {}, "8001/tcp": {}},
    "StopSignal": "SIGTERM",
}


@dataclass(frozen=True)
class ImageRequest:
    """A request for an image.

    Attributes:
        bundles: one for each architecture, or one for several.
        output: the folder of the image layout.
        platforms: ``linux/amd64`` and ``linux/arm64``, one or both; empty: those of the bundles.
        base: see :func:`edgecompile.image.base.make_base`.
        push: a repository with a tag, or None.
        annotations: further ones, or others than the image's own.
        plain_http: whether registries are asked without TLS.
        refresh: make the base and its packages again.
        force: replace an image layout of this name.
        only_bundle: whether the image holds the bundle and nothing else.
    """

    bundles: tuple[Path, ...]
    output: Path
    platforms: tuple[str, ...] = ()
    base: str = DEFAULT_BASE
    push: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    plain_http: bool = False
    refresh: bool = False
    force: bool = False
    only_bundle: bool = False


def make_image(request: ImageRequest, progress: Progress = NULL_PROGRESS) -> dict[str, Any]:
    """Writes the image, whole or not at all, and pushes it where that was asked for.

    Returns:
        Plain JSON values: "path", "digest", "pushed" (where to, or None) and "images": of each its
        "platform", "digest", "bundle", "bytes" and "layers" ("title", "digest", "size").

    Raises:
        ImageError: the bundles don't fit what is asked for; or the base can't be made.
        RegistryError: a registry can't be reached, or refuses.
        MissingDependencyError: a program is missing.
        BundleWriteError: the output is taken, or can't be written.
        BundleError and its like: the folder is no whole bundle.
    """
    chosen = _choose(request)
    _check(request)
    with progress.step("hash the bundles"):
        for bundle in {path for path, _ in chosen.values()}:
            folder = BundleFolder(str(bundle))
            try:
                folder.check_hashes()
            finally:
                folder.close()
    request.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=request.output.parent, prefix=f".{request.output.name}."
    ) as scratch:
        result = _write_layout(request, chosen, Path(scratch, "layout"), progress)
        if request.output.exists():
            shutil.rmtree(request.output)
        os.rename(Path(scratch, "layout"), request.output)
    if request.push is not None:
        with progress.step(f"push to {request.push}"):
            _push(request)
    return {"path": str(request.output), **result, "pushed": request.push}


def _choose(request: ImageRequest) -> dict[str, tuple[Path, BundleFolder]]:
    """The bundle of each architecture that is asked for; says all that is wrong with them."""
    bundles: dict[str, tuple[Path, BundleFolder]] = {}
    problems = []
    for path in request.bundles:
        folder = BundleFolder(str(path))
        folder.close()
        variants = folder.manifest.variants
        served = [v for v in variants if request.only_bundle or v.backend == AOTI_CPU]
        archs = {ARCHITECTURES[v.arch] for v in served}
        if not archs:
            kinds = ", ".join(sorted({v.backend for v in variants}))
            problems.append(
                f"{path} has no program for CPUs that runs without torch, but for {kinds}"
            )
        for arch in sorted(archs):
            if arch in bundles:
                problems.append(f"{path} and {bundles[arch][0]} are both for {arch}")
            bundles[arch] = (path, folder)
    architectures = [name.removeprefix("linux/") for name in request.platforms] or sorted(bundles)
    if missing := [arch for arch in architectures if arch not in bundles]:
        problems.append(
            f"no bundle is for {', '.join(missing)}: "
            + "; ".join(f"{path} is for {arch}" for arch, (path, _) in sorted(bundles.items()))
        )
    if problems:
        raise ImageError(
            "; ".join(problems),
            "build a bundle for each platform (edgecompile targets list), or leave --platform out",
        )
    return {arch: bundles[arch] for arch in sorted(set(architectures))}


def _check(request: ImageRequest) -> None:
    """All that can be known to fail before any work."""
    if not request.only_bundle:
        bases.check_base(request.base)
    elif request.refresh or request.base != DEFAULT_BASE:
        raise ImageError(
            "an image of the bundle alone has no base", "leave --base and --refresh out"
        )
    if request.output.exists():
        if not request.force:
            raise BundleWriteError(
                f"{request.output} is already there", "name another --output, or give --force"
            )
        if request.output.is_symlink() or not (request.output / "oci-layout").is_file():
            raise BundleWriteError(
                f"{request.output} is no image layout, so --force won't replace it",
                "name another --output, or remove it yourself",
            )
    if request.push is not None:
        bases.need("skopeo", "which pushes images")
        _check_registry(request.push, plain=request.plain_http)


def _check_registry(reference: str, *, plain: bool) -> None:
    host, _, repository = reference.rpartition("://")[2].partition("/")
    if "://" in reference or not repository or not (set(".:") & set(host) or host == "localhost"):
        raise ImageError(
            f"--push {reference} doesn't name a registry", "as in registry.example/minilm:3"
        )
    url = f"{'http' if plain else 'https'}://{host}/v2/"
    try:
        urllib.request.urlopen(url, timeout=20).close()
    except urllib.error.HTTPError:
        pass  # it is there, and wants to know who asks
    except (OSError, ValueError) as error:
        raise RegistryError(
            f"the registry {host} can't be reached: {getattr(error, 'reason', error)}",
            "is it up? --plain-http is for one without TLS",
        ) from error


def _write_layout(
    request: ImageRequest,
    chosen: Mapping[str, tuple[Path, BundleFolder]],
    output: Path,
    progress: Progress,
) -> dict[str, Any]:
    layout = Layout(output)
    images = []
    written: dict[Path, list[Layer]] = {}
    for arch, (path, bundle) in chosen.items():
        annotations = _annotations(path, bundle, request.only_bundle)
        settings: dict[str, Any] = {}
        if request.only_bundle:
            if path not in written:
                with progress.step(f"layers of {path.name}"):
                    written[path] = write_parts(path, bundle, layout.blobs)
            layers = written[path]
        else:
            base, layers = _write_server(request, arch, path, bundle, layout.blobs, progress)
            annotations |= base.annotations
            settings = _settings(base)
        annotations |= request.annotations
        images.append({**layout.add(arch, layers, settings, annotations), "bundle": str(path)})
    return {"digest": layout.finish(), "images": images}


def _write_server(
    request: ImageRequest,
    arch: str,
    path: Path,
    bundle: BundleFolder,
    blobs: Blobs,
    progress: Progress,
) -> tuple[bases.Base, list[Layer]]:
    """The base, and all layers of an image that serves a bundle."""
    with progress.step(f"base for {arch}"):
        base = bases.make_base(
            request.base, arch, blobs, refresh=request.refresh, tls=not request.plain_http
        )
    with progress.step(f"Python packages for {arch}"):
        packages = bases.add_packages(
            SERVER_REQUIREMENTS, ALONE, arch, base.python, blobs, refresh=request.refresh
        )
    with progress.step(f"layers of {path.name}"):
        return base, [*base.layers, packages, *_bundle_layers(path, bundle, base.python, blobs)]


def _bundle_layers(path: Path, bundle: BundleFolder, python: str, blobs: Blobs) -> list[Layer]:
    """The weights, which other code leaves as they are; the runtime and the server; the rest."""
    weights = set(bundle.manifest.weights.values())
    listed = list_names(path, bundle)
    own = Path(edgecompile.__file__).parent
    with tempfile.TemporaryDirectory(prefix="edgecompile-image-") as folder:
        target = Path(folder, "edgecompile")
        for name in _PARTS:
            if (own / name).is_dir():
                shutil.copytree(own / name, target / name, ignore=_ignore)
        shutil.copyfile(own / "__init__.py", target / "__init__.py")
        bases.compile_modules(Path(folder), python, f"/{_OWN}")
        ours = blobs.write_layer(
            "runtime and server", folder_entries(Path(folder), f"{_OWN}/"), compress=True
        )
    return [
        blobs.write_layer(
            "weights", folder_entries(path, f"{BUNDLE}/", weights.__contains__), compress=False
        ),
        ours,
        blobs.write_layer(
            "code",
            folder_entries(path, f"{BUNDLE}/", (listed - weights).__contains__),
            compress=True,
        ),
    ]


_PARTS = ("runtime", "server")


def _ignore(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if n in ("__pycache__", "native")]


def _annotations(path: Path, bundle: BundleFolder, only_bundle: bool) -> dict[str, str]:
    manifest = bundle.manifest
    server = "" if only_bundle else f", with the server of edgecompile {edgecompile.__version__}"
    release = path / RELEASE_NAME
    number = (
        {"edgecompile.release": str(parse_release(release.read_bytes(), str(release)).number)}
        if release.is_file()
        else {}
    )
    return {
        "org.opencontainers.image.title": manifest.name,
        "org.opencontainers.image.description": f"{manifest.name}, compiled ahead of time in "
        f"{manifest.precision}{server}",
        "org.opencontainers.image.version": bundle.manifest_sha256[:12],
        "org.opencontainers.image.created": find_date(),
        "edgecompile.manifest.sha256": bundle.manifest_sha256,
        **number,
    }


def _settings(base: bases.Base) -> dict[str, Any]:
    variables = dict(item.partition("=")[::2] for item in base.config.get("Env") or ())
    variables.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    variables |= {
        "PYTHONPATH": f"/{_OWN}:/{bases.PACKAGES}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EDGECOMPILE_FALLBACK": "cpu",
    }
    environment = [f"{name}={value}" for name, value in variables.items()]
    return {"WorkingDir": "/", "Env": environment, **_COMMAND}


def _push(request: ImageRequest) -> None:
    tls = ["--dest-tls-verify=false"] if request.plain_http else []
    # Else skopeo would compress the weights, and what is pushed would have another digest.
    command = ["skopeo", "copy", "--quiet", "--all", "--preserve-digests", *tls]
    bases.run(
        [*command, f"oci:{request.output}", f"docker://{request.push}"],
        f"{request.output} is written, but {request.push} doesn't take it",
        RegistryError,
    )
