"""The house's rules about imports and syntax, enforced."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from scripts import layout
from tests.draws import SEARCH

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "edgecompile"
DEVICE_FILES = [PACKAGE / "__init__.py", *sorted((PACKAGE / "runtime").rglob("*.py"))]
ALL_FILES = sorted(PACKAGE.rglob("*.py"))

RUNTIME = [
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
    for path in DEVICE_FILES[1:]
    if path.stem[0] != "_"
]
LIGHT = [
    "audit.elf",
    "audit.instructions",
    "buckets.costs.grid",
    "buckets.planner",
    "errors",
    "lengths.distribution",
    "planning.costs.roofline",
    "targets.profile",
]


def module_id(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def loaded_by(module: str) -> set[str]:
    """The top-level names that importing a module adds to sys.modules in a fresh process, beside
    the standard library and what the interpreter's own start-up had loaded."""
    return loaded_by_each([module], "sys")[module]


def loaded_by_each(modules: list[str], first: str = "numpy") -> dict[str, set[str]]:
    """The same of several modules and of ``first``, which is imported once; each module then is
    by a child of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_EACH, first, *modules],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [module for module, _ in lines] == modules
    own = {*sys.stdlib_module_names, "edgecompile"}
    return {module: {name.partition(".")[0] for name in names} - own for module, names in lines}


#: A child for each module that is named, one after the other.
_IMPORT_EACH = """
import importlib, json, os, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
for module in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        importlib.import_module(module)
        print(json.dumps([module, sorted(set(sys.modules) - before)]), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{module} can't be imported")
"""


def test_import_contracts() -> None:
    """The layers, and what the light modules must never reach; see pyproject.toml."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def whole() -> dict[str, set[str]]:
    """Which module imports which others."""
    return layout.graph(layout.modules())


def test_no_cycle_of_imports(whole: dict[str, set[str]]) -> None:
    """Not even by lazy imports and those for types."""
    assert layout.cycles(whole) == []
    assert layout.cycles(layout.by_package(whole)) == []
    runtime = {
        name.partition(".")[2]: {other.partition(".")[2] for other in others}
        for name, others in whole.items()
        if name.startswith("edgecompile.runtime.")
    }
    assert layout.cycles(layout.by_package(runtime)) == []


def test_the_picture_of_packages_is_that_of_the_imports(whole: dict[str, set[str]]) -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = page.partition("```mermaid\n")[2].partition("\n```")[0]
    assert drawn == layout.picture(whole), "run scripts/layout.py --picture"


def test_the_package_itself_loads_nothing() -> None:
    program = (
        "import sys; before = set(sys.modules); import edgecompile; "
        "print(sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['edgecompile']"


def test_the_runtime_loads_numpy_alone() -> None:
    found = loaded_by_each(["edgecompile.runtime", *RUNTIME])
    assert {module: names for module, names in found.items() if not names <= {"numpy"}} == {}


def test_finish_leaves_numpy_to_its_test() -> None:
    """It starts several processes; most look at no array."""
    modules = [
        f"edgecompile.runtime.finish.{name}" for name in ("finish", "worker", "engine_build")
    ]
    assert not any(loaded_by_each(modules, "sys").values())


def test_light_modules_load_no_framework() -> None:
    found = loaded_by_each([f"edgecompile.{module}" for module in LIGHT])
    heavy = {module: names - {"numpy", "elftools", "tomli"} for module, names in found.items()}
    assert {module: names for module, names in heavy.items() if names} == {}


@pytest.mark.slow
def test_building_for_cpus_needs_no_onnx() -> None:
    """onnx is an extra, of targets with a GPU and of benchmarks."""
    gpu = "edgecompile.pipeline.backends"
    found = loaded_by_each([gpu], "edgecompile.pipeline.stages")[gpu]
    assert "torch" in found and not found & {"onnx", "onnxruntime", "onnxscript"}


def test_the_command_line_loads_no_framework() -> None:
    """`edgecompile --help` has to be quick; commands load what they need when they run."""
    heavy = {"torch", "transformers", "matplotlib", "onnx", "onnxruntime", "openvino"}
    assert not loaded_by("edgecompile.cli") & heavy


@pytest.mark.parametrize("path", DEVICE_FILES, ids=module_id)
def test_device_files_parse_as_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


@pytest.mark.parametrize("path", DEVICE_FILES, ids=module_id)
def test_device_files_evaluate_no_newer_types(path: Path) -> None:
    """``list[int]`` and ``X | None`` parse in 3.8 and fail when they are evaluated."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    builtins = {"dict", "frozenset", "list", "set", "tuple", "type"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in builtins, f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = (node.left, node.right)
            none = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
            assert not none, f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", DEVICE_FILES, ids=module_id)
def test_device_files_import_nothing_else(path: Path) -> None:
    """Also what is imported inside functions."""
    file = path.relative_to(PACKAGE).as_posix().partition("/")[2]
    for name in imported_names(path):
        top = name.partition(".")[0]
        if top == "edgecompile":
            device = name in ("edgecompile", "edgecompile.__version__")
            assert device or name.startswith("edgecompile.runtime"), name
        elif top == "tokenizers":
            assert file == "text/encoder.py", name
        elif top == "cryptography":
            assert file == "format/trust/libcrypto.py", name
        elif top == "jinja2":
            assert file == "text/jinja.py", name
        elif top == "llguidance":
            assert file == "text/grammar.py", name
        elif top == "tensorrt":
            assert file == "finish/engine_build.py" or file.startswith("gpu/"), name
        else:
            assert top == "numpy" or top in sys.stdlib_module_names, name


#: Modules and packages of their own for torch's private names.
_PRIVATE_TO_TORCH = (
    PACKAGE / "backends" / "inductor" / "compat",
    PACKAGE / "backends" / "cuda" / "device_free.py",
    PACKAGE / "backends" / "cuda" / "patches.py",
)


@pytest.mark.parametrize("path", ALL_FILES, ids=module_id)
def test_only_four_modules_use_torch_s_private_names(path: Path) -> None:
    if path in _PRIVATE_TO_TORCH or path.parent in _PRIVATE_TO_TORCH:
        return
    private = [name for name in imported_names(path) if name.startswith("torch._")]
    if path == PACKAGE / "torch_runtime" / "handles.py":
        # What ships can't import the builder's; and it runs with one version of torch only.
        private = [name for name in private if name not in ("torch._C", "torch._C._aoti")]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            name = ast.unparse(node)
            # What torch's notes on extending it tell to make a tensor around others by.
            codes = path == PACKAGE / "export" / "padding" / "codes.py"
            wraps = codes and node.attr == "_make_wrapper_subclass"
            if name.startswith("torch.") and not wraps and not node.attr.startswith("__"):
                private.append(f"{name} (line {node.lineno})")
    assert not private


def imported_names(path: Path) -> Iterator[str]:
    """Every absolute module name that a file imports, wherever the import stands."""
    package = ["edgecompile", *path.parent.relative_to(PACKAGE).parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


#: What draws from the system's entropy, by its name or where it is given no seed.
_UNSEEDED = {"urandom", "token_bytes", "SystemRandom"}
_SEEDED_BY_ARGUMENT = {"default_rng", "Random", "RandomState"}


def test_what_tests_draw_is_the_same_in_every_run(request: pytest.FixtureRequest) -> None:
    """torch's global generator is seeded for each test by conftest.py."""
    profile = request.config.getoption("--hypothesis-profile")
    assert settings.default.derandomize == (profile != SEARCH)
    found = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _UNSEEDED or (name in _SEEDED_BY_ARGUMENT and not node.args):
                found.append(f"{module_id(path)}:{node.lineno}: {name}")
    assert not found
