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
#: The adapter of one major release uses names that others may lack.
ADAPTERS = {"release8.py": ("8.",), "release10.py": ("10.", "11.")}
#: What the stub declares and 8.6 lacks: release10.py alone may use it.
LACKING_IN_8 = {
    ("DataType", "BF16"),
    ("DataType", "INT64"),
    ("ExecutionContextAllocationStrategy",),
    ("ExecutionContextAllocationStrategy", "ON_PROFILE_CHANGE"),
    ("ExecutionContextAllocationStrategy", "STATIC"),
    ("ExecutionContextAllocationStrategy", "USER_MANAGED"),
    ("IBuilderConfig", "progress_monitor"),
    ("ICudaEngine", "get_device_memory_size_for_profile_v2"),
    ("IExecutionContext", "set_device_memory"),
    ("IProgressMonitor",),
    ("IProgressMonitor", "__init__"),
    ("IProgressMonitor", "phase_finish"),
    ("IProgressMonitor", "phase_start"),
    ("IProgressMonitor", "step_complete"),
    ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"),
    ("ParserError", "node_name"),
    ("ParserError", "node_operator"),
}
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


def used(version: str) -> dict[Chain, str]:
    """Every chain in the runtime that a version meets, and a file that has it."""
    monitor = {("IProgressMonitor",), ("IProgressMonitor", "__init__")}  # made by release10 alone
    return {
        chain: path.name
        for path in RUNTIME
        if version.startswith(ADAPTERS.get(path.name, ("",)))
        for chain in chains(path.read_text(encoding="utf-8"))
        if not (version.startswith("8.") and chain in monitor)
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
    assert sorted(LISTS) == ["10.16.1", "10.3.0", "11.4.0", "8.6.0"]
    assert all(len(names) > 150 for names in LISTS.values())


@pytest.mark.parametrize("version", LISTS)
def test_what_the_runtime_uses_exists(version: str) -> None:
    found = used(version)
    assert ("Builder",) in found and ("ILogger", "ERROR") in found
    flag = "EXPLICIT_BATCH" if version.startswith("8.") else "STRONGLY_TYPED"
    assert ("NetworkDefinitionCreationFlag", flag) in found
    missing = {chain: file for chain, file in found.items() if not exists(LISTS[version], chain)}
    assert missing == {}


@pytest.mark.parametrize("version", LISTS)
def test_what_the_stub_declares_exists(version: str) -> None:
    found = set(declared())
    assert ("Builder", "build_serialized_network") in found
    assert ("IBuilderConfig", "builder_optimization_level") in found
    assert ("ILogger", "WARNING") in found
    missing = {chain for chain in found if not exists(LISTS[version], chain)}
    assert missing == (LACKING_IN_8 if version.startswith("8.") else set())


def test_shared_code_asks_for_nothing_that_8_lacks() -> None:
    words = {chain[1] for chain in LACKING_IN_8 if len(chain) == 2 and chain[1] != "__init__"}
    for path in RUNTIME:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        asked = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert path.name == "release10.py" or not words & asked, path.name


@pytest.mark.parametrize("file", sorted(FAKE.glob("*.py")), ids=lambda path: path.name)
def test_the_fake_has_no_name_of_its_own(file: Path) -> None:
    """The fake has no name that TensorRT lacks: code could come to rely on it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef) or file.name == "hooks.py":
            continue
        if node.name.startswith("_"):
            continue
        names = LISTS["8.6.0" if file.name == "release8.py" else "10.3.0"]
        assert node.name in names, node.name
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                assert item.name in names[node.name], f"{node.name}.{item.name}"


def test_a_name_of_one_version_alone_would_be_noticed() -> None:
    chain = ("BuilderFlag", "FP16")
    assert chain in chains("def f() -> 'tensorrt.BuilderFlag.FP16': pass")
    assert exists(LISTS["10.3.0"], chain) and not exists(LISTS["11.4.0"], chain)
    assert chains("import tensorrt as trt\nx = trt.OnnxParser.supports_model(1)") == {
        ("OnnxParser",),
        ("OnnxParser", "supports_model"),
    }
