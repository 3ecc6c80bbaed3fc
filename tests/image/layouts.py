"""Writes images with the command, reads the layouts that it wrote, and runs them as an engine would."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cli.command import run


def write(*words: object) -> dict[str, Any]:
    """What the command says of the image that it wrote."""
    done = run("image", *map(str, words), "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refusal(*words: object) -> dict[str, Any]:
    """The error that the command ends with."""
    done = run("image", *map(str, words), "--json")
    assert done.exit_code != 0
    return json.loads(done.stdout)["error"]


def blob(layout: Path, digest: str) -> bytes:
    """A blob of a layout, once its hash was compared."""
    data = (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
    return data


def document(layout: Path, digest: str) -> dict[str, Any]:
    return json.loads(blob(layout, digest))


def unpack(layout: Path, root: Path) -> dict[str, Any]:
    """Unpacks the layers of a layout's one image; its configuration."""
    (top,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = document(layout, top["digest"])
    for layer in manifest["layers"]:
        blob(layout, layer["digest"])
        with tarfile.open(layout / "blobs/sha256" / layer["digest"].removeprefix("sha256:")) as tar:
            tar.extractall(root, filter="fully_trusted")
    config: dict[str, Any] = document(layout, manifest["config"]["digest"])["config"]
    return config


#: Becomes the container: no mount of it outlives it, and nothing of it can be written.
RUN = """set -e
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --bind /dev "$0/dev"
mount -o remount,ro,bind "$0"
exec chroot --userspec="$1" --groups= "$0" "${@:2}"
"""


def contained(
    config: dict[str, Any], root: Path, *words: str, namespaces: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``words`` in an unpacked image, and its environment; for root alone.

    It has namespaces of its own for mounts and processes, and the ``namespaces`` of unshare.
    """
    inside = ["unshare", "--mount", "--pid", *namespaces, "--fork", "--kill-child"]
    variables = dict(item.partition("=")[::2] for item in config["Env"])
    variables["PATH"] += ":/usr/sbin"
    return [*inside, "bash", "-c", RUN, str(root), config["User"], *words], variables


def change_code(source: Path, target: Path) -> Path:
    """A copy of a bundle with another library, which does the same."""
    manifest = json.loads((source / "manifest.json").read_text())
    name = manifest["variants"][0]["programs"][0]
    return append(source, target, name, b"\0" * 64)  # behind what an ELF file says it has


def append(source: Path, target: Path, name: str, more: bytes) -> Path:
    """A copy of a bundle with further bytes in a file, which its manifest lists."""
    shutil.copytree(source, target)
    manifest = json.loads((target / "manifest.json").read_text())
    content = (target / name).read_bytes() + more
    (target / name).write_bytes(content)
    manifest["files"][name] = {
        "size": len(content), "sha256": hashlib.sha256(content).hexdigest()
    }  # fmt: skip
    (target / "manifest.json").write_text(json.dumps(manifest))
    return target
