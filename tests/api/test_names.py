"""The names that ``import edgecompile`` offers, and its cost."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import edgecompile
from edgecompile.cli.build import command as build_command
from edgecompile.cli.explain import command as explain_command
from edgecompile.cli.plan import command as plan_command
from edgecompile.cli.verify import command as verify_command

PACKAGE = Path(next(iter(edgecompile.__path__)))


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(folder)}
    )


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    program = (
        "import edgecompile, sys; heavy = {'torch', 'numpy'}; assert not heavy & set(sys.modules); "
        "edgecompile.build; edgecompile.plan; edgecompile.explain; edgecompile.verify; "
        "edgecompile.errors; edgecompile.PlanOptions; assert 'torch' not in sys.modules\n"
        "try: edgecompile.build({}, lengths=[1])\n"
        "except edgecompile.errors.UsageError: assert 'torch' not in sys.modules\n"
        "else: assert False"
    )
    done = python(program, PACKAGE.parent)
    assert done.returncode == 0, done.stderr


def test_every_name_is_there_and_typed() -> None:
    stub = (PACKAGE / "__init__.pyi").read_text()
    for name in (*vars(edgecompile)["_BUILD"], *vars(edgecompile)["_RUNTIME"]):
        assert name in dir(edgecompile)
        assert getattr(edgecompile, name).__doc__
        assert f" as {name}\n" in stub
    assert edgecompile.errors.UsageError is edgecompile.errors.UsageError
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        edgecompile.biuld  # type: ignore[attr-defined]  # noqa: B018


def test_where_only_the_runtime_is_shipped(tmp_path: Path) -> None:
    folder = tmp_path / "edgecompile"
    ignored = shutil.ignore_patterns("native", "__pycache__")
    shutil.copytree(PACKAGE / "runtime", folder / "runtime", ignore=ignored)
    shutil.copy(PACKAGE / "__init__.py", folder)
    program = (
        # An editable installation would lend its modules.
        "import sys\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in f'{f.__module__}']\n"
        "import edgecompile\n"
        "assert edgecompile.open_bundle and edgecompile.errors.BundleError\n"
        "assert 'build' not in dir(edgecompile) and 'open_bundle' in dir(edgecompile)\n"
        "edgecompile.build('model')"
    )
    done = python(program, tmp_path)
    assert "ImportError: edgecompile.build belongs to the build tools" in done.stderr


def test_factories_are_built_without_transformers() -> None:
    """It comes with an extra: only models of its folders may ask for it."""
    program = (
        "import importlib, pkgutil, sys\n"
        "sys.modules['transformers'] = None\n"
        "import edgecompile, edgecompile.loaders.factories, edgecompile.loaders.saved_programs\n"
        "for name in ('api', 'pipeline', 'planning', 'quantization', 'backends', 'export', 'bundle', 'report', 'cli'):\n"
        "    package = importlib.import_module(f'edgecompile.{name}')\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if '.cuda' not in module.name: importlib.import_module(module.name)\n"
    )
    done = python(program, PACKAGE.parent)
    assert done.returncode == 0, done.stderr


#: Options of the command line about the terminal, and those with another form in Python.
_ELSEWHERE = {
    "session", "verbose", "json", "quiet", "debug", "as_json", "no_progress",
    "keep_work",  # give work_dir
    "report",  # .write_report(path)
    "calibration_bundle", "cost_points", "file",
    "untested_torch",  # EDGECOMPILE_UNTESTED_TORCH=1
}  # fmt: skip
_NAMES = {
    "plan_file": "plan",
    "no_emulation": "emulation",
    "no_code": "code",
}


@pytest.mark.parametrize(
    ("function", "command"),
    [
        (edgecompile.build, build_command),
        (edgecompile.plan, plan_command),
        (edgecompile.explain, explain_command),
        (edgecompile.verify, verify_command),
    ],
)
def test_every_option_of_the_command_line_is_there_by_its_name(function: Any, command: Any) -> None:
    parameters = inspect.signature(function).parameters
    names = set(parameters)
    for group in ("LoadOptions", "PlanOptions", "BuildOptions"):
        option = group.replace("Options", "").lower() + "_options"
        if option in names:
            names |= {field.name for field in fields(getattr(edgecompile, group))}
    if command is plan_command or command is explain_command:
        names.add("output")  # .save(path), .write_report(path)
    missing = {_NAMES.get(p.name, p.name) for p in command.params} - names - _ELSEWHERE
    assert missing == set()
    for option in command.params:
        parameter = parameters.get(option.name)
        if parameter is not None and isinstance(option.default, str | bool | int):
            assert str(parameter.default) == str(option.default), option.name
