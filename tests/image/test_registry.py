"""A real image: over Debian's packages, for two architectures, pushed to a registry on this machine,
pulled again and run, as user 10001 on a root that can't be written.

The base comes from Debian's mirror and the packages from PyPI, kept in the user's cache from one run to
the next. What an engine does with an image is done by hand here, with namespaces.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hosts.emulation import build_encoder_for_any
from tests.image.layouts import change_code, contained, document, refusal, unpack, write
from tests.image.registry import Registry, serving_registry
from tests.needs import lack, need, need_network

pytestmark = [pytest.mark.slow, pytest.mark.emulated]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with serving_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="module")
def bundle(shared_folder: Path, tiny_model: Path) -> Path:
    """A two-layer BERT for every variant of both architectures."""
    return build_encoder_for_any(shared_folder, tiny_model)


class Pushed(NamedTuple):
    told: dict[str, Any]
    name: str
    bundle: Path


@pytest.fixture(scope="module")
def pushed(
    registry: Registry, bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pushed]:
    for program in ("mmdebstrap", "skopeo"):
        need(program, program)
    if os.geteuid() != 0:
        lack("running an image by hand needs root's rights")
    need_network()
    folder = tmp_path_factory.mktemp("image")
    name = f"{registry.host}/tiny:1"
    told = write(bundle, "--output", folder / "1.oci", "--push", name, "--plain-http")
    yield Pushed(told, name, bundle)
    shutil.rmtree(folder, ignore_errors=True)


def pull(name: str, folder: Path, arch: str) -> tuple[dict[str, Any], Path]:
    """Pulls an image and unpacks its layers; returns its configuration and its root."""
    layout = folder / f"{arch}.oci"
    command = ["skopeo", "copy", "--quiet", f"--override-arch={arch}", "--src-tls-verify=false"]
    subprocess.run([*command, f"docker://{name}", f"oci:{layout}:x"], check=True)
    return unpack(layout, folder / arch), folder / arch


def run(config: dict[str, Any], root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in the image, without a network."""
    command, variables = contained(config, root, *words, namespaces=["--net"])
    return subprocess.run(command, capture_output=True, text=True, env=variables)


SELFTEST = ("python3", "-m", "edgecompile.runtime", "selftest", "/models")


def test_it_is_pulled_and_runs_as_nobody_on_a_root_that_can_not_be_written(
    pushed: Pushed, tmp_path: Path
) -> None:
    command = ["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{pushed.name}"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    assert pushed.told["digest"] == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    config, root = pull(pushed.name, tmp_path, "amd64")
    done = run(config, root, *SELFTEST)
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stderr
    program = "import os; print(os.getuid(), os.getgroups()); open('/tmp/x', 'w')"
    done = run(config, root, "python3", "-c", program)
    assert done.stdout == "10001 []\n" and "Read-only file system" in done.stderr
    for name in ("torch", "pip"):
        assert "No module named" in run(config, root, "python3", "-c", f"import {name}").stderr
    for shell in ("usr/bin/sh", "usr/bin/bash", "usr/bin/apt-get"):
        assert not (root / shell).exists()


def test_every_module_is_compiled_for_its_python(pushed: Pushed, tmp_path: Path) -> None:
    """An image that isn't would compile them at each start: its root can't be written."""
    config, root = pull(pushed.name, tmp_path, "amd64")
    done = run(config, root, "python3", "-v", *SELFTEST[1:])
    assert done.returncode == 0, done.stderr[-2000:]
    imported = [line for line in done.stderr.splitlines() if line.startswith("# code object from")]
    assert len(imported) > 200
    if shutil.which("python3.11"):
        assert [line for line in imported if not line.endswith(".pyc'")] == []


def test_arm64_runs_what_is_its_own(pushed: Pushed, tmp_path: Path) -> None:
    """Under qemu, which proves instructions and results."""
    qemu = need("qemu-aarch64", "qemu-user")
    _, root = pull(pushed.name, tmp_path, "arm64")
    variables = {
        **os.environ,
        "PYTHONHOME": f"{root}/usr",
        "PYTHONPATH": f"{root}/opt/edgecompile:{root}/opt/python",
        "QEMU_CPU": "cortex-a76",
    }
    command = [qemu, "-L", str(root), str(root / "usr/bin/python3.11")]
    done = subprocess.run(
        [*command, "-m", "edgecompile.runtime", "selftest", str(root / "models")],
        env=variables, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stderr
    for module in (
        "uvicorn",
        "uvloop",
        "httptools",
        "orjson",
        "grpc",
        "google.protobuf",
        "tokenizers",
    ):
        done = subprocess.run([*command, "-c", f"import {module}"], env=variables)
        assert done.returncode == 0, module


def buildah(*arguments: str, variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["buildah", *arguments], env=dict(variables), capture_output=True, text=True
    )
    assert done.returncode == 0, f"buildah {arguments}: {done.stderr}"
    return done.stdout.strip()


def choose_storage(folder: Path) -> dict[str, str]:
    """Variables that keep buildah's images in a folder, layered where this system can do that."""
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    )
    variables = {**os.environ, "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
    if subprocess.run(["buildah", "info"], env=variables, capture_output=True).returncode != 0:
        variables["STORAGE_DRIVER"] = "vfs"
    return variables


def test_buildah_takes_it(pushed: Pushed, tmp_path: Path) -> None:
    need("buildah", "buildah")
    variables = choose_storage(tmp_path)
    try:
        container = buildah(
            "from", "--tls-verify=false", f"docker://{pushed.name}", variables=variables
        )
        told = json.loads(buildah("inspect", container, variables=variables))
        assert told["OCIv1"]["config"]["User"] == "10001:10001"
        mounted = Path(buildah("mount", container, variables=variables))
        assert (mounted / "models" / "manifest.json").is_file()
    finally:
        subprocess.run(["buildah", "umount", "--all"], env=variables, capture_output=True)
        shutil.rmtree(tmp_path, ignore_errors=True)


def test_an_update_of_the_code_moves_the_code_alone(
    pushed: Pushed, registry: Registry, tmp_path: Path
) -> None:
    changed = change_code(pushed.bundle, tmp_path / "changed.ecb")
    before = registry.bytes()
    name = f"{registry.host}/tiny:2"
    told = write(changed, "--output", tmp_path / "2.oci", "--push", name, "--plain-http")
    moved = registry.bytes() - before
    kept = {layer["digest"] for image in pushed.told["images"] for layer in image["layers"]}
    new = [
        layer
        for image in told["images"]
        for layer in image["layers"]
        if layer["digest"] not in kept
    ]
    assert {layer["title"] for layer in new} == {"code"}
    assert len({layer["digest"] for layer in new}) == 1  # both architectures' is the same
    assert new[0]["size"] < moved < new[0]["size"] + 20_000
    config, root = pull(name, tmp_path, "amd64")
    assert "PASSED" in run(config, root, *SELFTEST).stdout


def test_the_same_parts_give_the_same_bytes(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base and the packages made anew, too."""
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    words = (pushed.bundle, "--platform", "linux/amd64")
    first = write(*words, "--output", tmp_path / "1.oci")
    second = write(*words, "--output", tmp_path / "2.oci", "--refresh")
    assert first["images"] == second["images"]


def test_a_registry_s_image_is_a_base(pushed: Pushed, registry: Registry, tmp_path: Path) -> None:
    words = (pushed.bundle, "--platform", "linux/arm64", "--plain-http")
    told = write(*words, "--output", tmp_path / "x.oci", "--base", pushed.name)
    layers = told["images"][0]["layers"]
    below = next(i for i in pushed.told["images"] if i["platform"] == "linux/arm64")["layers"]
    assert [layer["digest"] for layer in layers[: len(below)]] == [
        layer["digest"] for layer in below
    ]
    annotations = document(tmp_path / "x.oci", told["digest"])["annotations"]
    assert annotations["org.opencontainers.image.base.name"] == pushed.name


def test_what_a_registry_refuses_is_told(
    pushed: Pushed, registry: Registry, tmp_path: Path
) -> None:
    words = (pushed.bundle, "--plain-http", "--output", tmp_path / "x.oci")
    told = refusal(*words, "--base", f"{registry.host}/none:1")
    assert told["class"] == "RegistryError" and "can't be fetched" in told["message"]
    assert [*tmp_path.iterdir()] == []
