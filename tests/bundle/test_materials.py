"""Bills of materials, checked by the library's own schema of CycloneDX 1.6."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

import edgecompile
from tests.cli.command import run
from tests.runtime.bundles import DummyBundle
from tests.runtime.signed import RELEASE


@pytest.fixture
def bundle(tmp_path: Path) -> DummyBundle:
    pytest.importorskip("cyclonedx")
    bundle = DummyBundle(tmp_path / "tiny.ecb")
    bundle.document["built_by"] |= {"torch": "2.13.0", "compilers": "g++ 12", "structure": "0" * 64}
    bundle.files["tokenizer/tokenizer.json"] = b"{}"
    return bundle


def test_it_is_valid_and_names_every_part(bundle: DummyBundle, tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    path = Path(bundle.write())
    done = run("sbom", str(path), "--json", "--output", str(tmp_path / "bill.json"))
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "bill.json").read_text())
    assert document == json.loads(done.stdout) == edgecompile.sbom(path)
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None
    assert validator.validate_str(json.dumps({**document, "serialNumber": "x"})) is not None

    model = document["metadata"]["component"]
    weights = hashlib.sha256((path / "weights.fp32").read_bytes()).hexdigest()
    assert (model["type"], model["name"]) == ("machine-learning-model", "tiny")
    assert [item["content"] for item in model["hashes"]] == [weights]
    found = {item["name"]: item for item in document["components"]}
    libraries = {str(item.relative_to(path)) for item in path.rglob("*.so")}
    assert {name for name in found if name.endswith(".so")} == libraries
    own = {name for name, item in found.items() if "licenses" in item and name in libraries}
    assert own == {"code/x86-64/libecprobe.so", "code/x86-64-v3/libeckernels-0.so"}
    for name in (*libraries, "weights.fp32", "tokenizer/tokenizer.json"):
        digest = hashlib.sha256((path / name).read_bytes()).hexdigest()
        assert [item["content"] for item in found[name]["hashes"]] == [digest]
    built = {
        name: item["version"] for name, item in found.items() if item.get("scope") == "excluded"
    }
    assert built == {
        "edgecompile": "0.1.0", "torch": "2.13.0", "torch-inductor": "2.13.0", "compilers": "g++ 12"
    }  # fmt: skip


def test_the_same_bundle_gives_the_same_bill(bundle: DummyBundle, tmp_path: Path) -> None:
    path = Path(bundle.write())
    first = edgecompile.sbom(path)
    assert "timestamp" not in first["metadata"] and first["version"] == 1
    moved = edgecompile.sbom(path.rename(tmp_path / "moved.ecb"))
    assert json.dumps(first) == json.dumps(moved)
    (tmp_path / "moved.ecb/release.json").write_text(json.dumps(RELEASE))
    signed = edgecompile.sbom(tmp_path / "moved.ecb")
    assert (signed["version"], signed["serialNumber"]) == (42, first["serialNumber"])
    assert signed["metadata"]["timestamp"] == "2026-01-01T00:00:00+00:00"
    bundle.files["tokenizer/tokenizer.json"] = b"{ }"
    other = edgecompile.sbom(bundle.write())
    assert other["serialNumber"] != first["serialNumber"]


@pytest.mark.parametrize("name", ["edgecompile-runtime", "weights.fp32", "tool", "runtime"])
def test_a_part_s_reference_is_no_other_s(bundle: DummyBundle, name: str) -> None:
    bundle.document["name"] = name
    path = Path(bundle.write())
    first = edgecompile.sbom(path)
    assert first == edgecompile.sbom(path)
    parts = [*first["components"], *first["metadata"]["tools"]["components"]]
    refs = [item["bom-ref"] for item in (*parts, first["metadata"]["component"])]
    assert len(set(refs)) == len(refs) == len(parts) + 1


def test_what_can_not_be_listed(
    bundle: DummyBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(bundle.write())
    assert run("sbom", str(path), "--output", str(tmp_path / "none" / "x")).exit_code == 74
    (path / "weights.fp32").write_bytes(b"")
    assert run("sbom", str(path)).exit_code == 22
    assert run("sbom", str(tmp_path / "none")).exit_code == 20
    monkeypatch.setitem(sys.modules, "cyclonedx", None)
    done = run("sbom", str(path), "--json")
    error = json.loads(done.stdout)["error"]
    assert (error["class"], error["hint"]) == (
        "MissingDependencyError", "pip install 'edgecompile[sbom]'"
    )  # fmt: skip
