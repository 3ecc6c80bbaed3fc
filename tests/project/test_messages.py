"""Messages below the command line name arguments as Python does; the command line puts its flags there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import edgecompile

PACKAGE = Path(next(iter(edgecompile.__path__)))
#: Reached from commands alone, or on the device, which has no arguments of a build.
_ELSEWHERE = ("bench", "cli", "drift", "image", "runtime", "server")
_FLAG = re.compile(r"(?<![\w,-])--[a-z]")
#: A command that a message names as a whole.
_COMMAND = re.compile(
    r"\b(edgecompile \w+|bench|info|plan|build|start|install|download)( [A-Z]+| …)?( --[a-z-]+( \w+)?)+"
)
_NAMED = re.compile(r"`(\w+)(?:=[^`]*)?`")
#: Attributes of an error and of a factory's result, the key of a profile, what only `plan` on the command line has, and
#: an environment variable.
_OTHERS = {
    "__cause__",
    "details",
    "limits",
    "tensorrt",
    "calibration_bundle",
    "EDGECOMPILE_UNTESTED_TORCH",
}


def messages() -> Iterator[tuple[str, str]]:
    """Texts of several words in the code that builds and plans, with their places; no docstrings."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in _ELSEWHERE:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
        parts = {id(part) for node in formatted for part in node.values}
        alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            text = _text(node)
            if " " in text and id(node) not in parts | alone:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text  # type: ignore[attr-defined]


def _text(node: ast.AST) -> str:
    """A string; "…" stands for a value that is put into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_messages_name_no_flags() -> None:
    found = [(at, text) for at, text in messages() if _FLAG.search(_COMMAND.sub("", text))]
    assert not found, "name arguments in backticks: see edgecompile/checks.py"


def test_names_in_messages_are_those_of_arguments() -> None:
    functions = ("build", "plan", "explain", "verify", "generate_key", "sign", "verify_signature")
    signatures = [inspect.signature(getattr(edgecompile, name)) for name in functions]
    known = {name for signature in signatures for name in signature.parameters}
    for group in (edgecompile.LoadOptions, edgecompile.PlanOptions, edgecompile.BuildOptions):
        known |= {field.name for field in fields(group)}
    named = [(at, name) for at, text in messages() for name in _NAMED.findall(text)]
    assert len(named) > 100
    assert not [(at, name) for at, name in named if name not in known | _OTHERS]
