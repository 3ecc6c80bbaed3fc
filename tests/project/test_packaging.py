"""Wheels, sdists and editable installs: their contents, and that they work where they land."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import edgecompile
from tests.server.processes import check_inference, serving

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "edgecompile"

# Run inside an environment: what the installed project says about itself.
ASK = """
import json, edgecompile, edgecompile.runtime
from edgecompile.targets.profile import list_targets, load_target
from edgecompile.targets.schema import search_path
print(json.dumps({
    "file": edgecompile.__file__,
    "version": edgecompile.__version__,
    "targets": list_targets(),
    "folders": [str(folder) for folder in search_path()],
    "variants": [variant.name for variant in load_target("cpu-x86-64").variants],
}))
"""


def run(*command: str | Path, cwd: Path | str) -> str:
    """Output of a command that has to succeed."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("PYTHONPATH", "EDGECOMPILE_PROFILES"):
        environment.pop(name, None)
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def pip(*arguments: str | Path, cwd: Path) -> str:
    return run(sys.executable, "-m", "pip", "--quiet", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree: building leaves folders behind."""
    copy = tmp_path_factory.mktemp("source") / "edgecompile"
    copy.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
    for name in ("edgecompile", "profiles", "scripts"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=ignore)
    for path in REPOSITORY.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


def build_wheel(source: Path, folder: Path) -> Path:
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


class Environment:
    """A fresh virtual environment that sees the libraries of this one, but not the project."""

    def __init__(self, folder: Path, libraries: list[Path] | None = None) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.site = Path(
            run(self.python, "-c", "import sysconfig as s; print(s.get_path('purelib'))", cwd=folder)
            .strip()
        )  # fmt: skip
        # A line in a .pth adds a folder without reading that folder's own .pth files, so an
        # editable install of the project there has no effect here.
        paths = [Path(sysconfig.get_path("purelib"))] if libraries is None else libraries
        (self.site / "libraries.pth").write_text("".join(f"{path}\n" for path in paths))

    def pip(self, *arguments: str | Path) -> None:
        pip("--python", self.python, *arguments, cwd=self.folder)

    def ask(self, program: str = ASK) -> dict[str, object]:
        answer = json.loads(run(self.python, "-c", program, cwd=self.folder))
        assert isinstance(answer, dict)
        return answer


def test_listed_packages_are_those_of_the_tree() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    listed = {name for name in project["tool"]["setuptools"]["packages"] if "_profiles" not in name}
    found = {
        ".".join(path.parent.relative_to(REPOSITORY).parts) for path in PACKAGE.rglob("__init__.py")
    }
    assert listed == found


def test_every_module_lies_in_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_wheel_holds_all_that_is_needed_and_nothing_else(wheel: Path) -> None:
    # Every file of the package, so that new kinds of data aren't forgotten.
    expected = {
        path.relative_to(REPOSITORY).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name[0] != "."
    }
    for path in (REPOSITORY / "profiles").rglob("*.toml"):
        name = path.relative_to(REPOSITORY / "profiles").as_posix()
        expected.add(f"edgecompile/_profiles/{name}")
    assert {"edgecompile/py.typed", "edgecompile/runtime/FORMAT.md"} <= expected
    held = {name for name in names_in(wheel) if ".dist-info/" not in name}
    assert expected - held == set(), "missing"
    assert held - expected == set(), "unexpected"


def test_wheel_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
        info = name.removesuffix("METADATA")
        entry_points = archive.read(info + "entry_points.txt").decode()
        licence = archive.read(info + "licenses/LICENSE").decode()
    assert metadata["Name"] == "edgecompile"
    assert metadata["Version"] == edgecompile.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert licence == (REPOSITORY / "LICENSE").read_text()
    assert "edgecompile = edgecompile.cli:main" in entry_points
    needed = metadata.get_all("Requires-Dist")
    plain = {
        requirement.split(";")[0].strip() for requirement in needed if "extra" not in requirement
    }
    assert "torch>=2.13" in plain, "an upper bound would have pip replace a newer torch"
    assert any(requirement.startswith("numpy") for requirement in plain)
    assert not any(requirement.startswith("transformers") for requirement in plain)


def test_installed_wheel_works(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", "--no-index", wheel)
    answer = environment.ask()
    assert answer["file"] == str(environment.site / "edgecompile" / "__init__.py")
    assert answer["version"] == edgecompile.__version__
    assert answer["folders"] == [str(environment.site / "edgecompile" / "_profiles")]
    shipped = sorted(path.stem for path in (REPOSITORY / "profiles").glob("*.toml"))
    assert answer["targets"] == shipped
    assert answer["variants"] == ["x86-64-v3", "x86-64-v4"]
    command = environment.folder / "bin" / "edgecompile"
    assert "Usage" in run(command, "--help", cwd=tmp_path)


def test_editable_install_works(source: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", "--no-build-isolation", "--editable", source)
    answer = environment.ask()
    assert answer["file"] == str(source / "edgecompile" / "__init__.py")
    assert answer["folders"] == [str(source / "profiles")]
    assert answer["variants"] == ["x86-64-v3", "x86-64-v4"]
    (source / "profiles" / "new.toml").write_text((source / "profiles/cpu-x86-64.toml").read_text())
    try:
        targets = environment.ask()["targets"]
        assert isinstance(targets, list) and "new" in targets, "a profile needs no reinstallation"
    finally:
        (source / "profiles" / "new.toml").unlink()


@pytest.mark.slow
def test_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path)
    run(*command, source, cwd=tmp_path)
    (archive_path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive_path) as archive:
        names = archive.getnames()
        if sys.version_info >= (3, 12):
            archive.extractall(tmp_path / "unpacked", filter="data")
        else:
            archive.extractall(tmp_path / "unpacked")
    top = names[0].split("/")[0]
    assert {f"{top}/LICENSE", f"{top}/pyproject.toml", f"{top}/profiles/cpu-x86-64.toml"} <= set(
        names
    )
    (tmp_path / "wheels").mkdir()
    again = build_wheel(tmp_path / "unpacked" / top, tmp_path / "wheels")
    assert names_in(again) == names_in(wheel)


def build_runtime_wheel(source: Path, folder: Path) -> Path:
    script = source / "scripts" / "build-runtime-wheel"
    path = Path(run(sys.executable, script, "--output", folder, cwd=folder.parent).strip())
    assert path.parent == folder
    assert [file.name for file in folder.iterdir()] == [path.name]
    return path


def test_runtime_wheel_is_the_same_anywhere(source: Path, tmp_path: Path) -> None:
    first = build_runtime_wheel(REPOSITORY, tmp_path / "one")
    for path in source.rglob("*"):
        os.utime(path, (1, 1))
    second = build_runtime_wheel(source, tmp_path / "two")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_runtime_wheel_holds_the_runtime_alone(tmp_path: Path) -> None:
    wheel = build_runtime_wheel(REPOSITORY, tmp_path / "out")
    runtime = PACKAGE / "runtime"
    expected = {path.relative_to(REPOSITORY).as_posix() for path in runtime.rglob("*.py")}
    expected |= {"edgecompile/__init__.py", "edgecompile/runtime/FORMAT.md"}
    assert {name for name in names_in(wheel) if ".dist-info/" not in name} == expected
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata.get_all("Requires-Dist") == ["numpy>=1.19"]
    assert metadata["Requires-Python"] == ">=3.8"
    assert metadata["Version"] == edgecompile.__version__


def test_the_server_s_wheel_serves(device: Environment, tiny_bundle: Path, tmp_path: Path) -> None:
    """Beside the runtime's, with uvicorn in pure Python."""
    script = REPOSITORY / "scripts" / "build-runtime-wheel"
    made = run(sys.executable, script, "--server", "--output", tmp_path / "server", cwd=tmp_path)
    wheel = Path(made.strip())
    sources = {
        path.relative_to(REPOSITORY).as_posix() for path in (PACKAGE / "server").rglob("*.py")
    }
    assert {name for name in names_in(wheel) if ".dist-info/" not in name} == sources
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        needed = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist")
    assert needed[0] == f"edgecompile-runtime=={edgecompile.__version__}"
    assert needed[1].startswith("uvicorn>=")
    assert all("extra ==" in item for item in needed[2:])
    device.pip("install", "--no-deps", "--no-index", wheel)
    others = device.folder / "others"
    others.mkdir()
    for package in ("uvicorn", "h11", "click"):
        (others / package).symlink_to(Path(sysconfig.get_path("purelib")) / package)
    environment = {**os.environ, "PYTHONPATH": str(others)}
    how = {"python": str(device.python), "cwd": device.folder, "env": environment}
    with serving(tiny_bundle, **how) as server:
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        check_inference(server, tiny_bundle)
        (worker,) = server.workers()
        loaded = Path(f"/proc/{worker}/maps").read_text()
        assert str(REPOSITORY / "edgecompile") not in loaded
        assert "httptools" not in loaded and "orjson" not in loaded
        assert server.end() == 0


@pytest.fixture
def device(tmp_path: Path) -> Environment:
    """An environment with numpy and the runtime's wheel, and nothing else."""
    wheel = build_runtime_wheel(REPOSITORY, tmp_path / "out")
    numpy_alone = tmp_path / "numpy_alone"
    numpy_alone.mkdir()
    for path in Path(sysconfig.get_path("purelib")).glob("numpy*"):
        (numpy_alone / path.name).symlink_to(path)
    environment = Environment(tmp_path / "venv", [numpy_alone])
    environment.pip("install", "--no-deps", "--no-index", wheel)
    return environment


def test_runtime_wheel_runs_the_self_test(device: Environment, tiny_bundle: Path) -> None:
    command = (device.python, "-m", "edgecompile.runtime")
    report = json.loads(run(*command, "selftest", tiny_bundle, "--json", cwd=device.folder))
    assert report["ok"] and len(report["cases"]) == 18
    assert not {"torch", "click", "elftools"} & set(report["imported"])
    info = json.loads(run(*command, "info", tiny_bundle, "--host", "--json", cwd=device.folder))
    assert info["chosen"] == report["variant"]
    # The wheel's modules, not those that lie in the bundle.
    where = run(device.python, "-c", "import edgecompile.runtime as r; print(r.__file__)", cwd="/")
    assert where.startswith(str(device.site))


def test_runtime_wheel_works_beside_numpy_alone(device: Environment) -> None:
    environment = device
    answer = environment.ask(
        "import importlib.util as u, json; from edgecompile.runtime import open_bundle; "
        "print(json.dumps({'open': callable(open_bundle), 'torch': u.find_spec('torch') is not None,"
        " 'builder': u.find_spec('edgecompile.targets') is not None}))"
    )
    assert answer == {"open": True, "torch": False, "builder": False}
    environment.pip("uninstall", "--yes", "edgecompile-runtime")
    assert not (environment.site / "edgecompile").exists(), "a file that RECORD doesn't list"


def test_version_is_a_literal() -> None:
    """Tools read it without running the file."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert ast.literal_eval(value) == edgecompile.__version__
