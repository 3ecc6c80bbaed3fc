"""Every name of TensorRT that the runtime uses exists in every version that it may meet.

tests/data/tensorrt_names/ lists, by class, the public names that NVIDIA's own modules of those
versions export. mypy holds our code to the stub, and this holds the stub to the lists.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RUNTIME = sorted((REPOSITORY / "edgecompile" / "runtime").rglob("*.py"))
STUB = REPOSITORY / "stubs" / "tensorrt" / "__init__.pyi"
FAKE = REPOSITORY / "tests" / "fake_gpu" / "modules" / "tensorrt"
LISTS = {
    path.stem: {
        name: set(members.split()) for name, members in json.loads(path.read_text()).items()
    }
    for path in sorted((REPOSITORY / "tests" / "data" / "tensorrt_names").glob("*.json"))
}
Chain = tuple[str, ...]


def chains(source: str) -> set[Chain]:
    """("Builder", "create_network") of every ``tensorrt.Builder.create_network`` in Python text."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        item: ast.AST = node
        while isinstance(item, ast.Attribute):
            names.insert(0, item.attr)
            item = item.value
        if names and isinstance(item, ast.Name) and item.id in ("tensorrt", "trt"):
            found.add(tuple(names))
        # A type in quotes is text to ast.
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text.startswith(("tensorrt.", "trt.")) and text.replace(".", "").isidentifier():
                found |= chains(text)
    return found


def used() -> dict[Chain, str]:
    """Every chain in the runtime, and a file that has it."""
    return {
        chain: path.name for path in RUNTIME for chain in chains(path.read_text(encoding="utf-8"))
    }


def declared() -> Iterator[Chain]:
    """Every class of the stub and every member of one."""
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        yield (node.name,)
        for item in ast.walk(node):
            if isinstance(item, ast.ClassDef | ast.FunctionDef) and item is not node:
                yield (node.name, item.name)
            elif isinstance(item, ast.Assign | ast.AnnAssign):
                targets = item.targets if isinstance(item, ast.Assign) else [item.target]
                yield from ((node.name, t.id) for t in targets if isinstance(t, ast.Name))


def exists(names: dict[str, set[str]], chain: Chain) -> bool:
    """Whether a version has ``chain``; of deeper ones the first two names are looked at."""
    if chain[0].startswith("__"):
        return True
    if chain[0] not in names:
        return False
    return len(chain) == 1 or chain[1].startswith("__") or chain[1] in names[chain[0]]


def test_the_lists_are_those_of_the_versions_that_are_supported() -> None:
    assert sorted(LISTS) == ["10.16.1", "10.3.0", "11.4.0"]
    assert all(len(names) > 150 for names in LISTS.values())


@pytest.mark.parametrize("version", LISTS)
def test_what_the_runtime_uses_exists(version: str) -> None:
    found = used()
    assert ("Builder",) in found and ("ILogger", "ERROR") in found
    assert ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED") in found
    missing = {chain: file for chain, file in found.items() if not exists(LISTS[version], chain)}
    assert missing == {}


@pytest.mark.parametrize("version", LISTS)
def test_what_the_stub_declares_exists(version: str) -> None:
    found = set(declared())
    assert ("Builder", "build_serialized_network") in found
    assert ("IBuilderConfig", "builder_optimization_level") in found
    assert ("ILogger", "WARNING") in found
    assert [chain for chain in sorted(found) if not exists(LISTS[version], chain)] == []


@pytest.mark.parametrize("file", sorted(FAKE.glob("*.py")), ids=lambda path: path.name)
def test_the_fake_has_no_name_of_its_own(file: Path) -> None:
    """The fake has no name that TensorRT lacks: code could come to rely on it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef) or file.name == "hooks.py":
            continue
        if node.name.startswith("_"):
            continue
        assert node.name in LISTS["10.3.0"], node.name
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                assert item.name in LISTS["10.3.0"][node.name], f"{node.name}.{item.name}"


def test_a_name_of_one_version_alone_would_be_noticed() -> None:
    chain = ("BuilderFlag", "FP16")
    assert chain in chains("def f() -> 'tensorrt.BuilderFlag.FP16': pass")
    assert exists(LISTS["10.3.0"], chain) and not exists(LISTS["11.4.0"], chain)
    assert chains("import tensorrt as trt\nx = trt.OnnxParser.supports_model(1)") == {
        ("OnnxParser",),
        ("OnnxParser", "supports_model"),
    }
