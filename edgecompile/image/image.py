"""Makes an image of bundles: one for each architecture, and an index of them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import edgecompile
from edgecompile.errors import BundleWriteError, ImageError, RegistryError
from edgecompile.image import base as bases
from edgecompile.image.layers import Blobs, Layer, folder_entries
from edgecompile.progress import NULL_PROGRESS, Progress
from edgecompile.runtime.format.folder import BundleFolder
from edgecompile.runtime.format.schema import AOTI_CPU, MANIFEST_NAME
from edgecompile.runtime.format.trust.release import RELEASE_NAME
from edgecompile.runtime.format.trust.statement import SIGNATURES_NAME

#: The names of architectures in manifests, and in the OCI's.
ARCHITECTURES = {"x86-64": "amd64", "aarch64": "arm64"}
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
#: Where KServe looks for a model in an image.
BUNDLE = "models"
#: Its package for downloads, which it requires, isn't used.
ALONE = ("tokenizers>=0.20,<1",)
_OWN = "opt/edgecompile"
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
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
    """

    bundles: tuple[Path, ...]
    output: Path
    platforms: tuple[str, ...] = ()
    base: str = "mmdebstrap:bookworm"
    push: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    plain_http: bool = False
    refresh: bool = False
    force: bool = False


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
        archs = {ARCHITECTURES[v.arch] for v in variants if v.backend == AOTI_CPU}
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
    bases.check_base(request.base)
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
    blobs = Blobs(output / "blobs")
    entries, images = [], []
    for arch, (path, bundle) in chosen.items():
        with progress.step(f"base for {arch}"):
            base = bases.make_base(
                request.base, arch, blobs, refresh=request.refresh, tls=not request.plain_http
            )
        with progress.step(f"Python packages for {arch}"):
            packages = bases.add_packages(
                SERVER_REQUIREMENTS, ALONE, arch, base.python, blobs, refresh=request.refresh
            )
        with progress.step(f"layers of {path.name}"):
            layers = [
                *base.layers,
                packages,
                *_bundle_layers(path, bundle, base.python, blobs),
            ]
        annotations = {**_annotations(bundle), **base.annotations, **request.annotations}
        config = _config(arch, base, layers, annotations)
        digest, size = blobs.add(_json(config))
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": digest, "size": size},
            "layers": [layer.descriptor() for layer in layers],
            "annotations": annotations,
        }
        digest, size = blobs.add(_json(manifest))
        platform = {"os": "linux", "architecture": arch}
        entries.append(
            {"mediaType": _MANIFEST, "digest": digest, "size": size, "platform": platform}
        )
        images.append(
            {
                "platform": f"linux/{arch}",
                "digest": digest,
                "bundle": str(path),
                "bytes": sum(layer.size for layer in layers),
                "layers": [
                    {"title": item.title, "digest": item.digest, "size": item.size}
                    for item in layers
                ],
            }
        )
    top = entries[0]
    if len(entries) > 1:
        digest, size = blobs.add(
            _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries})
        )
        top = {"mediaType": _INDEX, "digest": digest, "size": size}
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [top]}
    (output / "index.json").write_bytes(_json(index))
    (output / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return {"digest": top["digest"], "images": images}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _bundle_layers(path: Path, bundle: BundleFolder, python: str, blobs: Blobs) -> list[Layer]:
    """The weights, which other code leaves as they are; the runtime and the server; the rest."""
    weights = set(bundle.manifest.weights.values())
    signatures = [item.name for item in (path / SIGNATURES_NAME).glob("*.sig")]
    listed = {*bundle.manifest.files, MANIFEST_NAME, RELEASE_NAME}
    listed |= {f"{SIGNATURES_NAME}/{name}" for name in signatures}
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


def _annotations(bundle: BundleFolder) -> dict[str, str]:
    manifest = bundle.manifest
    return {
        "org.opencontainers.image.title": manifest.name,
        "org.opencontainers.image.description": f"{manifest.name}, compiled ahead of time in "
        f"{manifest.precision}, with the server of edgecompile {edgecompile.__version__}",
        "org.opencontainers.image.version": bundle.manifest_sha256[:12],
        "org.opencontainers.image.created": _created(),
        "edgecompile.manifest.sha256": bundle.manifest_sha256,
    }


def _created() -> str:
    """When: as SOURCE_DATE_EPOCH says, or at its beginning, so that the same parts give the same bytes."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not seconds.isdecimal():
        raise ImageError(f"SOURCE_DATE_EPOCH={seconds} is no number of seconds")
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _config(
    arch: str, base: bases.Base, layers: Sequence[Layer], annotations: Mapping[str, str]
) -> dict[str, Any]:
    variables = dict(item.partition("=")[::2] for item in base.config.get("Env") or ())
    variables.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    variables |= {
        "PYTHONPATH": f"/{_OWN}:/{bases.PACKAGES}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EDGECOMPILE_FALLBACK": "cpu",
    }
    return {
        "architecture": arch,
        "os": "linux",
        "created": annotations["org.opencontainers.image.created"],
        "config": {
            "WorkingDir": "/",
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "Labels": dict(annotations),
            **_COMMAND,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created_by": layer.title} for layer in layers],
    }


def _push(request: ImageRequest) -> None:
    tls = ["--dest-tls-verify=false"] if request.plain_http else []
    # Else skopeo would compress the weights, and what is pushed would have another digest.
    command = ["skopeo", "copy", "--quiet", "--all", "--preserve-digests", *tls]
    bases.run(
        [*command, f"oci:{request.output}", f"docker://{request.push}"],
        f"{request.output} is written, but {request.push} doesn't take it",
        RegistryError,
    )
