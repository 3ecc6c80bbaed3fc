"""``edgecompile image`` on small bundles: what it writes over a fake base, and what it refuses.

The base and the packages are fakes of a file each; tests/image/test_registry.py makes real ones.
"""

from __future__ import annotations

import hashlib
import io
import json
import socket
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgecompile.image import base as bases
from edgecompile.image import parts
from edgecompile.image.base import Base
from edgecompile.image.image import ALONE, SERVER_REQUIREMENTS
from edgecompile.image.layers import Blobs, Entry, Layer
from tests.cli.command import run
from tests.image.layouts import blob, document, refusal, write
from tests.runtime.bundles import DummyBundle
from tests.runtime.signed import RELEASE

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def fake_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base and packages of one file each, for any architecture."""

    def make_base(name: str, arch: str, blobs: Blobs, **more: object) -> Base:
        layer = blobs.write_layer(name, [Entry("etc/arch", arch.encode())], compress=True)
        config = {"Env": ["PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8"]}
        return Base((layer,), PYTHON, config, {"org.opencontainers.image.base.name": name})

    def add_packages(
        requirements: object, alone: object, arch: str, python: str, blobs: Blobs, **more: object
    ) -> Layer:
        entries = [Entry(f"{bases.PACKAGES}/numpy.py", b"fake")]
        return blobs.write_layer("packages", entries, compress=True)

    monkeypatch.setattr(bases, "check_base", lambda base: None)
    monkeypatch.setattr(bases, "make_base", make_base)
    monkeypatch.setattr(bases, "add_packages", add_packages)


def write_bundle(folder: Path, arch: str = "x86-64", code: bytes = b"no program 0") -> Path:
    bundle = DummyBundle(folder)
    (variant,) = bundle.document["variants"]
    variant["arch"] = arch
    bundle.document["probes"] = {arch: "code/x86-64/libecprobe.so"}
    bundle.files["code/x86-64-v3/bucket-0.so"] = code
    return Path(bundle.write())


def write_release(bundle: Path) -> None:
    release = {**RELEASE, "name": "tiny", "number": 42}
    (bundle / "release.json").write_text(json.dumps(release))


@pytest.mark.usefixtures("fake_base")
class TestWritten:
    def test_signatures_come_along(self, tmp_path: Path) -> None:
        bundle = write_bundle(tmp_path / "m.ecb")
        write_release(bundle)
        (bundle / "signatures").mkdir()
        (bundle / "signatures" / "ci.sig").write_bytes(b"a signature")
        *_, code = document(tmp_path / "m.oci", write(bundle)["images"][0]["digest"])["layers"]
        data = blob(tmp_path / "m.oci", code["digest"])
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            names = archive.getnames()
        for wanted in ("/release.json", "/signatures/ci.sig"):
            assert [name for name in names if name.endswith(wanted)], names

    def test_the_layout_is_whole(self, tmp_path: Path) -> None:
        bundle = write_bundle(tmp_path / "m.ecb")
        told = write(bundle, "--annotation", "org.opencontainers.image.source=here")
        layout = tmp_path / "m.oci"
        assert told["path"] == str(layout) and told["pushed"] is None
        assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
        (top,) = json.loads((layout / "index.json").read_text())["manifests"]
        assert top["digest"] == told["digest"] and top["platform"]["architecture"] == "amd64"
        manifest = document(layout, top["digest"])
        config = document(layout, manifest["config"]["digest"])
        titles = [item["created_by"] for item in config["history"]]
        assert titles[2:] == ["weights", "runtime and server", "code"]
        assert len(config["rootfs"]["diff_ids"]) == len(manifest["layers"]) == 5
        for layer in manifest["layers"]:
            assert len(blob(layout, layer["digest"])) == layer["size"]
        stored = {path.name for path in (layout / "blobs" / "sha256").iterdir()}
        listed = [top, manifest["config"], *manifest["layers"]]
        assert stored == {item["digest"].removeprefix("sha256:") for item in listed}
        annotations = manifest["annotations"]
        assert annotations["org.opencontainers.image.title"] == "tiny"
        assert annotations["org.opencontainers.image.created"] == "1970-01-01T00:00:00Z"
        assert annotations["org.opencontainers.image.source"] == "here"
        sha = hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
        assert annotations["edgecompile.manifest.sha256"] == sha

    def test_it_runs_as_nobody_from_what_it_holds(self, tmp_path: Path) -> None:
        told = write(write_bundle(tmp_path / "m.ecb"), "--output", tmp_path / "x.oci")
        manifest = document(tmp_path / "x.oci", told["digest"])
        config = document(tmp_path / "x.oci", manifest["config"]["digest"])["config"]
        assert config["User"] == "10001:10001" and config["WorkingDir"] == "/"
        assert config["Entrypoint"][:2] == ["python3", "-m"] and "/models" in config["Cmd"]
        assert {"LANG=C.UTF-8", "PYTHONPATH=/opt/edgecompile:/opt/python"} <= {*config["Env"]}

    def test_the_same_parts_give_the_same_bytes(self, tmp_path: Path) -> None:
        bundle = write_bundle(tmp_path / "m.ecb")
        first = write(bundle, "--output", tmp_path / "1.oci")
        second = write(write_bundle(tmp_path / "other.ecb"), "--output", tmp_path / "2.oci")
        assert first["digest"] == second["digest"]

    def test_other_code_leaves_the_weights(self, tmp_path: Path) -> None:
        first = write(write_bundle(tmp_path / "1.ecb"))
        second = write(write_bundle(tmp_path / "2.ecb", code=b"another program"))
        before, after = (
            {layer["title"]: layer["digest"] for layer in told["images"][0]["layers"]}
            for told in (first, second)
        )
        assert {title for title in before if before[title] != after[title]} == {"code"}

    def test_two_architectures_make_an_index(self, tmp_path: Path) -> None:
        both = [write_bundle(tmp_path / "a.ecb"), write_bundle(tmp_path / "b.ecb", "aarch64")]
        layout = tmp_path / "x.oci"
        told = write(*both, "--output", layout)
        index = document(layout, told["digest"])
        assert index["mediaType"] == "application/vnd.oci.image.index.v1+json"
        archs = [item["platform"]["architecture"] for item in index["manifests"]]
        assert archs == ["amd64", "arm64"]
        for item, arch in zip(index["manifests"], archs, strict=True):
            manifest = document(layout, item["digest"])
            assert document(layout, manifest["config"]["digest"])["architecture"] == arch
        one = write(*both, "--output", tmp_path / "y.oci", "--platform", "linux/arm64")
        assert [image["platform"] for image in one["images"]] == ["linux/arm64"]

    def test_force_replaces_a_layout_alone(self, tmp_path: Path) -> None:
        bundle = write_bundle(tmp_path / "m.ecb")
        write(bundle)
        assert refusal(bundle)["class"] == "BundleWriteError"
        write(bundle, "--force")
        (tmp_path / "m.oci" / "oci-layout").unlink()
        assert "won't replace" in refusal(bundle, "--force")["message"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["m.ecb", "m.oci"]


class TestTheBundleAlone:
    """``--only-bundle``, which needs no base."""

    def write_large(self, folder: Path, code: bytes = b"no program 0") -> Path:
        """A signed bundle for two architectures, with weights of 1 MiB and of 4 KiB."""
        bundle = DummyBundle(folder)
        other = {**bundle.document["variants"][0], "name": "arm", "arch": "aarch64"}
        bundle.document["variants"].append(other)
        bundle.document["probes"]["aarch64"] = "code/x86-64/libecprobe.so"
        bundle.document["weights"]["int8"] = "weights.int8"
        bundle.files |= {
            "weights.fp32": bytes(1 << 20), "weights.int8": bytes(1 << 12), "__main__.py": b"",
            "code/x86-64-v3/bucket-0.so": code, "tokenizer/tokenizer.json": b"{}", "runtime/a.py": b"",
        }  # fmt: skip
        path = Path(bundle.write())
        write_release(path)
        (path / "signatures").mkdir()
        (path / "signatures" / "ci.sig").write_bytes(b"a signature")
        return path

    def test_parts_are_layers(self, tmp_path: Path) -> None:
        bundle = self.write_large(tmp_path / "m.ecb")
        (bundle / "weights.fp32").chmod(0o640)
        told = write(bundle, "--only-bundle")
        layout = tmp_path / "m.oci"
        names = []
        first, second = told["images"]
        assert (first["platform"], second["platform"]) == ("linux/amd64", "linux/arm64")
        assert first["layers"] == second["layers"]
        for layer in first["layers"]:
            data = blob(layout, layer["digest"])
            assert data[4:8] == bytes(4) and not data[3]  # gzip's time and name
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                files = [info for info in tar if not info.isdir()]
            assert {(info.mode, info.mtime, info.type) for info in files} == {(0o444, 0, b"0")}
            names.append((layer["title"], sorted(Path(info.name).parts[1] for info in files)))
        code, golden = ["code"] * 4, ["golden"] * 2
        assert names == [
            ("weights.fp32", ["weights.fp32"]),
            ("tokenizer and golden vectors", [*golden, "tokenizer", "weights.int8"]),
            ("runtime", ["runtime"]),
            ("code", code),
            ("manifest", ["__main__.py", "manifest.json", "release.json", "reports", "signatures"]),
        ]
        manifest = document(layout, first["digest"])
        labels = document(layout, manifest["config"]["digest"])["config"]["Labels"]
        assert labels["edgecompile.release"] == "42" and labels == manifest["annotations"]
        assert "artifactType" not in manifest and "server" not in json.dumps(labels)

    def test_other_code_changes_two_layers(self, tmp_path: Path) -> None:
        told = [
            write(self.write_large(tmp_path / name, code), "--only-bundle")
            for name, code in (("1.ecb", b"a"), ("2.ecb", b"a"), ("3.ecb", b"b"))
        ]
        assert told[0]["digest"] == told[1]["digest"] != told[2]["digest"]
        before, after = (
            {i["title"]: i["digest"] for i in t["images"][0]["layers"]} for t in told[1:]
        )
        assert {name for name in after if before[name] != after[name]} == {"code", "manifest"}

    def test_a_layer_holds_the_files_beyond_the_most(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parts, "_MOST_LARGE", 0)
        told = write(self.write_large(tmp_path / "m.ecb"), "--only-bundle")
        titles = [layer["title"] for layer in told["images"][0]["layers"]]
        assert titles == ["tokenizer and golden vectors", "runtime", "code", "manifest"]

    @pytest.mark.parametrize("words", [["--refresh"], ["--base", "python:3.12"]])
    def test_a_base_is_refused(self, words: list[str], tmp_path: Path) -> None:
        told = refusal(write_bundle(tmp_path / "m.ecb"), "--only-bundle", *words)
        assert told["class"] == "ImageError" and "no base" in told["message"]
        assert not (tmp_path / "m.oci").exists()


class TestRefused:
    """Each before any work: nothing is written, and no program is run."""

    @pytest.fixture(autouse=True)
    def nothing_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(bases, "run", lambda *words, **more: pytest.fail("a program is run"))
        yield
        assert not [path for path in tmp_path.iterdir() if path.suffix != ".ecb"]

    def test_no_bundle(self, tmp_path: Path) -> None:
        assert refusal(tmp_path / "none.ecb")["class"] == "BundleError"

    def test_a_bundle_for_another_architecture(self, tmp_path: Path) -> None:
        bundle = write_bundle(tmp_path / "m.ecb")
        told = refusal(bundle, "--platform", "linux/arm64", "--platform", "linux/amd64")
        assert (told["class"], told["code"]) == ("ImageError", 51)
        assert "no bundle is for arm64" in told["message"]
        assert "m.ecb is for amd64" in told["message"]

    def test_all_that_is_wrong_with_the_bundles_is_told(self, tmp_path: Path) -> None:
        first, second = (write_bundle(tmp_path / f"{name}.ecb") for name in "ab")
        message = refusal(first, second, "--platform", "linux/arm64")["message"]
        assert "b.ecb and" in message and "are both for amd64" in message
        assert "no bundle is for arm64" in message

    def test_a_bundle_that_needs_torch(self, tmp_path: Path) -> None:
        bundle = DummyBundle(tmp_path / "m.ecb")
        (variant,) = bundle.document["variants"]
        variant["backend"], variant["torch"] = "torch", "2.13.0"
        del variant["runtime"]
        assert "that runs without torch, but for torch" in refusal(bundle.write())["message"]

    def test_a_damaged_bundle(self, tmp_path: Path, fake_base: None) -> None:
        bundle = write_bundle(tmp_path / "m.ecb")
        (bundle / "weights.fp32").write_bytes(b"")
        assert refusal(bundle)["class"] == "DamagedBundleError"

    @pytest.mark.parametrize(
        ("words", "program"), [([], "mmdebstrap"), (["--base", "python:3.12-slim"], "skopeo")]
    )
    def test_a_program_that_is_missing(
        self, words: list[str], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "")
        told = refusal(write_bundle(tmp_path / "m.ecb"), *words)
        assert told["class"] == "MissingDependencyError"
        assert told["message"] == f"{program} isn't installed" and program in told["hint"]

    @pytest.mark.parametrize("base", ["", "-x", "a b", "mmdebstrap:", "mmdebstrap:../x"])
    def test_a_base_that_is_no_name(self, base: str, tmp_path: Path) -> None:
        assert refusal(write_bundle(tmp_path / "m.ecb"), "--base", base)["class"] == "ImageError"

    def test_a_registry_that_is_down(
        self, tmp_path: Path, fake_base: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bases, "need", lambda program, what: program)
        bundle = write_bundle(tmp_path / "m.ecb")
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            host = f"127.0.0.1:{unused.getsockname()[1]}"
            told = refusal(bundle, "--push", f"{host}/m:1", "--plain-http")
        assert (told["class"], told["code"]) == ("RegistryError", 52)
        assert f"the registry {host} can't be reached" in told["message"]

    @pytest.mark.parametrize("name", ["minilm", "minilm:3", "https://r.example/m", "r.example/"])
    def test_a_push_that_names_no_registry(
        self, name: str, tmp_path: Path, fake_base: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bases, "need", lambda program, what: program)
        assert refusal(write_bundle(tmp_path / "m.ecb"), "--push", name)["class"] == "ImageError"

    def test_an_annotation_without_a_value(self, tmp_path: Path) -> None:
        done = run("image", str(write_bundle(tmp_path / "m.ecb")), "--annotation", "x")
        assert done.exit_code == 2 and "isn't KEY=VALUE" in done.stderr


def test_what_is_installed_is_what_the_server_asks_for() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    server = {*optional["server"], *optional["grpc"]}
    assert server <= {*SERVER_REQUIREMENTS}
    assert {*SERVER_REQUIREMENTS, *ALONE} <= {*server, *project["dependencies"], *optional["hf"]}
