"""The base of an image: a system with Python, and the packages that the server imports."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgecompile.errors import ImageError, MissingDependencyError, RegistryError
from edgecompile.files import write_json
from edgecompile.image.layers import Blobs, Entry, Layer, archive_entries, folder_entries
from edgecompile.toolchain.compilers import cache_directory

#: Below it are the packages of PyPI.
PACKAGES = "opt/python"

#: A base that is made here, from Debian's packages: this and the release.
_MADE = "mmdebstrap:"
#: By the architecture's name in the OCI's and Debian's: pip's tag.
_WHEELS = {"amd64": "x86_64", "arm64": "aarch64"}
_GLIBCS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
_PYTHON = re.compile(r"usr/(?:local/)?bin/python(3\.[0-9]+)")
#: Of a Debian root: what no program reads. Licences stay.
_UNREAD = re.compile(
    r"(dev|proc|run|sys|tmp|etc/apt|var/(cache|log|lib/apt))/"
    r"|usr/share/(bug|info|lintian|locale|man)/"
    r"|usr/share/doc/(?![^/]+/copyright)"
    r"|etc/(resolv\.conf|hostname|machine-id)$"
)


@dataclass(frozen=True)
class Base:
    """A system with Python, as layers.

    Attributes:
        layers: its layers, the lowest first.
        python: its Python's version, such as ``3.11``.
        config: the image's settings for running it.
        annotations: its name and digest, if it has any.
    """

    layers: tuple[Layer, ...]
    python: str
    config: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


def check_base(base: str) -> None:
    """Checks that what makes or fetches a base is installed.

    Raises:
        ImageError: the base can't be the name of one.
        MissingDependencyError: a program is missing.
    """
    if base.startswith(_MADE):
        if not re.fullmatch(r"[a-z][a-z0-9-]*", base.removeprefix(_MADE)):
            raise ImageError(
                f"--base {base} names no release of Debian", "as in mmdebstrap:bookworm"
            )
        need("mmdebstrap", "or name an image with Python: --base python:3.12-slim-bookworm")
    elif not base or base.startswith("-") or re.search(r"\s", base):
        raise ImageError(f"--base {base!r} can't name an image", "as in python:3.12-slim-bookworm")
    else:
        need("skopeo", "which fetches the base")


def need(program: str, what: str) -> str:
    """The path of a program.

    Raises:
        MissingDependencyError: it isn't installed.
    """
    path = shutil.which(program)
    if path is None:
        raise MissingDependencyError(
            f"{program} isn't installed", f"apt-get install {program}; {what}"
        )
    return path


def make_base(
    base: str, arch: str, blobs: Blobs, *, refresh: bool = False, tls: bool = True
) -> Base:
    """Makes or fetches a base, and puts its layers among the blobs.

    Args:
        base: ``mmdebstrap:SUITE``, or an image as skopeo names it; without a transport, of a registry.
        arch: ``amd64`` or ``arm64``.
        blobs: the store that gets the layers.
        refresh: make it of Debian's packages of today, not those of last time.
        tls: whether registries are asked over HTTPS with a certificate.

    Raises:
        ImageError: it can't be made, or has no Python.
        RegistryError: it can't be fetched.
    """
    if base.startswith(_MADE):
        suite = base.removeprefix(_MADE)
        key = ["root", suite, arch, _UNREAD.pattern]
        layer, python = _kept(key, blobs, refresh, lambda to: _debian_root(suite, arch, to))
        return Base((layer,), python)
    return _fetch(base, arch, blobs, tls)


def _kept(
    key: Sequence[str], blobs: Blobs, refresh: bool, make: Callable[[Blobs], tuple[Layer, str]]
) -> tuple[Layer, str]:
    """A layer that was made earlier, or makes it: what an update doesn't change isn't moved again."""
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    folder = cache_directory() / "image" / name
    record = folder / "layer.json"
    cache = Blobs(folder)
    if refresh or not record.is_file():
        layer, facts = make(cache)
        write_json(record, {"key": list(key), "layer": asdict(layer), "facts": facts})
    document = json.loads(record.read_text())
    layer = Layer(**document["layer"])
    try:
        blobs.take(cache.path(layer.digest), layer.digest)
    except (OSError, ValueError) as error:
        raise ImageError(f"a kept layer is damaged: {error}", "give --refresh") from error
    return layer, str(document["facts"])


def _debian_root(suite: str, arch: str, blobs: Blobs) -> tuple[Layer, str]:
    with tempfile.TemporaryDirectory(prefix="edgecompile-image-") as folder:
        archive = Path(folder, "root.tar")
        # Packages are unpacked and none of their scripts is run, so that any machine makes any
        # architecture's, and the root has neither a shell nor a package manager's state to go stale.
        run(
            [
                "mmdebstrap", "--variant=extract", f"--architectures={arch}",
                "--include=python3-minimal,libpython3-stdlib,libgcc-s1,libstdc++6",
                "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", suite, str(archive),
            ],
            f"Debian's {suite} for {arch} can't be unpacked",
        )  # fmt: skip
        with tarfile.open(archive) as tar:
            python = _find_python(tar.getnames())
            library = f"usr/lib/python{python}/"
            modules = [info for info in tar if info.name.lstrip("./").startswith(library)]
            tar.extractall(folder, modules, filter="tar")
            compile_modules(Path(folder, library), python, f"/{library}")
            entries = [
                *(Entry(name, "", kind=tarfile.DIRTYPE) for name in _EMPTY),
                *archive_entries(tar, lambda name: not _UNREAD.match(name)),
                *folder_entries(Path(folder, library), library),
                Entry("etc/passwd", _USERS),
                Entry("etc/group", b"root:x:0:\nedgecompile:x:10001:\n"),
                Entry("etc/nsswitch.conf", b"hosts: files dns\n"),
            ]
            return blobs.write_layer(f"Debian {suite}", entries, compress=True), python


#: Where engines mount something.
_EMPTY = ("dev", "proc", "run", "sys", "tmp")
_USERS = b"root:x:0:0:root:/:/usr/sbin/nologin\nedgecompile:x:10001:10001::/:/usr/sbin/nologin\n"


def _find_python(names: Iterable[str]) -> str:
    versions = {
        m[1] for name in names if (m := _PYTHON.fullmatch(name.removeprefix("./").strip("/")))
    }
    if not versions:
        raise ImageError("the base has no Python", "as in --base python:3.12-slim-bookworm")
    return max(versions, key=lambda version: int(version.split(".")[1]))


def _fetch(base: str, arch: str, blobs: Blobs, tls: bool) -> Base:
    source = (
        base
        if re.match(r"[a-z-]+:(//|/|\.)|containers-storage:|oci:", base)
        else f"docker://{base}"
    )
    with tempfile.TemporaryDirectory(prefix="edgecompile-image-") as folder:
        command = ["skopeo", "copy", "--quiet", f"--override-arch={arch}", "--override-os=linux"]
        command += ["--dest-oci-accept-uncompressed-layers"]
        command += [] if tls else ["--src-tls-verify=false"]
        run([*command, source, f"oci:{folder}:base"], f"{base} can't be fetched", RegistryError)
        download = Blobs(Path(folder, "blobs"))
        (entry,) = json.loads(Path(folder, "index.json").read_text())["manifests"]
        manifest = json.loads(download.path(entry["digest"]).read_text())
        document = json.loads(download.path(manifest["config"]["digest"]).read_text())
        if document.get("architecture") != arch:
            raise ImageError(
                f"{base} is for {document.get('architecture')}, not {arch}",
                "name a base that has both, or give --platform",
            )
        layers = []
        for item, diff in zip(manifest["layers"], document["rootfs"]["diff_ids"], strict=True):
            layers.append(Layer(base, item["mediaType"], item["digest"], diff, item["size"]))
            blobs.take(download.path(item["digest"]), item["digest"])
        python = _find_python(_names(download.path(layer.digest) for layer in layers))
    annotations = {
        "org.opencontainers.image.base.name": base,
        "org.opencontainers.image.base.digest": entry["digest"],
    }
    return Base(tuple(layers), python, document.get("config", {}), annotations)


def _names(archives: Iterable[Path]) -> Iterator[str]:
    for path in archives:
        try:
            with tarfile.open(path) as tar:
                yield from tar.getnames()
        except tarfile.TarError as error:
            raise ImageError(f"a layer of the base can't be read: {error}") from error


def add_packages(
    requirements: Sequence[str],
    alone: Sequence[str],
    arch: str,
    python: str,
    blobs: Blobs,
    *,
    refresh: bool = False,
) -> Layer:
    """Puts Python packages into a layer, for another Python and architecture than this one's, too.

    Args:
        requirements: requirements in pip's syntax; only wheels are taken.
        alone: the requirements that come without their own dependencies.
        arch, python: the architecture and the version of Python of the base.
        blobs: the store that gets the layer.
        refresh: take the newest versions, not those of last time.

    Raises:
        ImageError: pip doesn't find wheels.
    """
    key = ["packages", *requirements, "alone", *alone, arch, python, _have(python)]

    def make(target: Blobs) -> tuple[Layer, str]:
        with tempfile.TemporaryDirectory(prefix="edgecompile-image-") as folder:
            _install(Path(folder), requirements, arch, python)
            _install(Path(folder), ["--no-deps", *alone], arch, python)
            return _pack(Path(folder), python, target), ""

    return _kept(key, blobs, refresh, make)[0]


def _install(folder: Path, words: Sequence[str], arch: str, python: str) -> None:
    tags = [f"--platform={glibc}_{_WHEELS[arch]}" for glibc in _GLIBCS]
    run(
        [
            sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
            "--target", str(folder), "--only-binary=:all:", "--no-compile", "--implementation=cp",
            f"--python-version={python}", *tags, *words,
        ],
        f"no wheels for Python {python} on {_WHEELS[arch]} of {', '.join(words)}",
    )  # fmt: skip


def _pack(folder: Path, python: str, blobs: Blobs) -> Layer:
    shutil.rmtree(folder / "bin", ignore_errors=True)  # scripts that name this Python
    compile_modules(folder, python, f"/{PACKAGES}")
    entries = folder_entries(folder, f"{PACKAGES}/", lambda name: "/tests/" not in name)
    return blobs.write_layer("Python packages", entries, compress=True)


def compile_modules(folder: Path, python: str, inside: str) -> None:
    """Compiles the modules below a folder, if this machine has that Python: an image is read-only.

    Their sources aren't looked at again when they are imported: nothing can change them there.
    """
    compiler = _compiler(python)
    if compiler is not None:
        mode = ["--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", inside]
        # Whatever order sets had would be in the byte code.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        command = [compiler, "-m", "compileall", "-q", "-f", *mode, str(folder)]
        # Packages may hold modules that aren't meant for this Python.
        subprocess.run(command, env=environment, capture_output=True, check=False)


def _have(python: str) -> str:
    return "compiled" if _compiler(python) else "sources"


def _compiler(python: str) -> str | None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return sys.executable if python == own else shutil.which(f"python{python}")


def run(command: Sequence[str], problem: str, kind: type[ImageError] = ImageError) -> None:
    """Runs a program.

    Raises:
        ImageError: it failed; with what it said last.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0", "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise kind(f"{problem}: {command[0]} said: {' / '.join(lines[-3:])[-600:]}")
