"""Limits on .pt2 archives, so that torch reads them without running code from them.

torch.export.load of torch 2.13 and 2.14 runs what an archive says in these places, so each is held to a list of
what is allowed; everything else is refused, whatever the archive says about it:

    member                          what torch would do
    data/aotinductor/               load libraries
    data/weights, data/constants    unpickle NAME.pt (old format), what its configuration calls pickled,
                                    and custom_obj_N and opaque_obj_N even where it doesn't
    data/sample_inputs              unpickle, where torch.load(weights_only=True) fails
    version, serialized_*.pt        unpickle (old format, tried where the new one can't be read)
    expressions of sizes            sympy.sympify, which evaluates them as Python
    guards_code                     execute it, as Python
    names of nodes and arguments    write them into Python that torch.fx executes
    targets of nodes                call what torch, math or operator have under that name
    in_spec, out_spec               import the module that an enum or a factory of a dict names

Names and bytes come by torch's own reader: another reader of zip archives may see other ones.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch
from torch.export.pt2_archive import PT2ArchiveReader
from torch.export.pt2_archive._package import load_pt2

from edgecompile.errors import ModelError
from edgecompile.export.guards import quiet_torch
from edgecompile.models.modules import describe_error
from edgecompile.toolchain.torch_versions import check_torch

PROGRAM = "models/model.json"
_MEMBERS = re.compile(
    r"models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version"
    r"|\.storage_alignment|extra/.*"
)
_PAYLOADS = {"weights": re.compile(r"weight_\d+"), "constants": re.compile(r"tensor_\d+")}
_TARGET = re.compile(
    r"torch\.ops\.(aten\.(?!(from_file|save)\.)|prims\.|edgecompile\.|quantized_decomposed\.|torchvision\.)"
    r"\w+\.\w+"
    r"|torch\.ops\.higher_order\.(cond|while_loop|map_impl|scan|associative_scan|wrap_with_\w+|wrap"
    r"|tag_activation_checkpoint|flex_attention|invoke_subgraph|out_dtype|hints_wrapper)"
    r"|torch\.sym_\w+|torch\._sym_\w+|math\.\w+"
    # What torch's verifier lets pass, without the one that imports a class by its name.
    r"|torch\._functorch\.predispatch\.(_\w+|lazy_load_decompositions)|torch\._C\._set_grad_enabled"
    r"|torch\.autograd\.grad_mode\.set_grad_enabled|torch\.amp\.autocast_mode\._(enter|exit)_autocast"
    r"|torch\.fx\.experimental\.symbolic_shapes\.cast_symbool_to_symint_guardless"
    r"|_operator\.(eq|ne|le|ge|lt|gt|neg|pos|abs|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|xor|not_"
    r"|lshift|rshift|getitem)"
)
# Nothing of these is a call, a quote or a second statement where it is written into Python.
_TEXT = re.compile(r"[\w.+:/#-]*")
_FUNCTION = re.compile(
    r"Symbol|Integer|Rational|Float|Add|Mul|Pow|Max|Min|Mod|Abs|And|Or|Not|Xor|Equality|Unequality"
    r"|(Strict)?(Less|Greater)Than|Eq|Ne|Le|Lt|Ge|Gt|Piecewise|ExprCondPair|floor|ceiling|sqrt|log|exp"
    r"|FloorDiv|ModularIndexing|Where|PythonMod|CleanDiv|(Ceil|Floor|Trunc|Round)ToInt|CeilDiv"
    r"|[LR]Shift|PowByNatural|FloatPow|FloatTrueDiv|IntTrueDiv|TruncToFloat|RoundDecimal|ToFloat"
    r"|Identity|IsNonOverlappingAndDenseIndicator|(OpaqueUnary|Bitwise)Fn_\w+|max|min|abs|int|float"
)
_PLAIN = (
    ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Subscript, ast.keyword, ast.Tuple,
)  # fmt: skip
_MAX_CONFIG_BYTES = 256 << 20
_MOST_NAMED = 5


def find_dangers(stream: IO[bytes]) -> list[str]:
    """Finds what reading an archive would run, and what torch.export.save doesn't write; at most a few.

    Raises:
        Exception: it isn't an archive, or a damaged one: whatever torch's reader raises.
    """
    reader = PT2ArchiveReader(stream)
    names = reader.get_file_names()
    if PROGRAM not in names:
        return ["it holds no exported program"]
    dangers = [f"it holds {_describe(name)}" for name in names if not _MEMBERS.fullmatch(name)]
    # torch's reader finds names whatever their case.
    if len({name.lower() for name in names}) != len(names):
        dangers.append("two of its files have one name")
    if not dangers:
        for kind, payload in _PAYLOADS.items():
            config = f"data/{kind}/model_{kind}_config.json"
            dangers += _pickled(_read_json(reader, config), payload)
        dangers += _sample_dangers(reader.read_bytes("data/sample_inputs/model.pt"))
        dangers += dict.fromkeys(_program_dangers(_read_json(reader, PROGRAM), ""))
    return [*dangers[:_MOST_NAMED], *(["and more"] if dangers[_MOST_NAMED:] else [])]


def _describe(name: str) -> str:
    if name.startswith("data/aotinductor/") or name.endswith(".so"):
        return f"compiled code ({name!r})"
    if re.match(r"data/(weights|constants)/.*\.pt$|version$|serialized_", name):
        return f"an old format ({name!r})"
    if re.match(r"data/constants/(custom|opaque)_obj_", name):
        return f"a pickled object ({name!r})"
    return f"what isn't known here ({name!r})"


def _read_json(reader: PT2ArchiveReader, name: str) -> Any:
    data = reader.read_bytes(name)
    if len(data) > _MAX_CONFIG_BYTES:
        raise ValueError(f"{name} is too large")
    return json.loads(data)


def _pickled(document: Any, payload: re.Pattern[str]) -> list[str]:
    # Not what the entry says of itself: torch decides by the file's name.
    return [
        f"{key!r} is a pickled object"
        for key, item in document["config"].items()
        if item["use_pickle"] is not False or not payload.fullmatch(item["path_name"])
    ]


def _sample_dangers(data: bytes) -> list[str]:
    try:
        if data:
            torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # unpickling refuses in many ways
        return ["the sample inputs hold more than tensors"]
    return []


def _program_dangers(value: Any, key: str) -> Iterator[str]:
    """Walks the program's JSON; ``key`` is that of the value, or of the list that it is in."""
    if isinstance(value, dict):
        # The ranges of sizes are named by these, sums of symbols among them, and only looked up.
        is_plain = _is_plain_expression if key == "range_constraints" else _TEXT.fullmatch
        for name, item in value.items():
            if not is_plain(name):
                yield f"the name {name[:60]!r} isn't plain"
            # What a node says of its origin is never made into code.
            if key != "metadata" or name not in _ORIGINS:
                yield from _program_dangers(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _program_dangers(item, key)
    elif isinstance(value, str) and not _is_harmless(key, value):
        yield f"{key} is {value[:60]!r}"


_ORIGINS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node")


def _is_harmless(key: str, text: str) -> bool:
    if key in ("as_string", "as_strings"):  # written as Python's repr does
        return True
    if key in ("target", "as_operator"):
        return _TARGET.fullmatch(text) is not None
    if key in ("expr_str", "guards_code"):
        return _is_plain_expression(text)
    if key in ("in_spec", "out_spec"):
        try:
            return all(_is_plain_tree(item) for item in json.loads(text)[1:])
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
    return _TEXT.fullmatch(text) is not None


@cache
def _is_plain_expression(text: str) -> bool:
    """Whether it is arithmetic of sizes, with calls of sympy's and torch's functions of them alone."""
    if len(text) > 100_000 or not re.fullmatch(r"[\w .,'\[\]()=<>!+*/%&|^~-]*", text, re.ASCII):
        return False
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_plain_node(node) for node in nodes)


def _is_plain_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _TEXT.fullmatch(node.value) is not None  # sympy evaluates texts, too
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Attribute) and "__" not in node.attr:
        if isinstance(node.value, ast.Name) and node.value.id in ("math", "torch"):
            return node.value.id == "math" or node.attr.startswith("sym_")
        return node.attr in ("size", "stride", "storage_offset")
    if isinstance(node, ast.Call):
        function = node.func
        named = isinstance(function, ast.Name) and _FUNCTION.fullmatch(function.id)
        return bool(named) or isinstance(function, ast.Attribute)
    return isinstance(node, _PLAIN)


def _is_plain_tree(tree: Any) -> bool:
    """Whether reading a structure of arguments or results imports nothing."""
    context = tree["context"]
    if tree["type"] is not None and not _TEXT.fullmatch(tree["type"]):
        return False
    if context is not None and not (
        isinstance(context, str) and re.fullmatch(r'[\w\s.,"\[\]-]*', context, re.ASCII)
    ):
        return False
    return all(_is_plain_tree(child) for child in tree["children_spec"])


def load_program(path: Path) -> torch.export.ExportedProgram:
    """Reads an ExportedProgram after a look at what the archive holds.

    Raises:
        ModelError: it isn't one, is damaged, or holds what would run code while it is read.
    """
    importlib.import_module(
        "edgecompile.export.operators.recurrence"
    )  # registers an operator that it may hold
    with _checked(path) as stream:
        try:
            with quiet_torch():
                # Not torch.export.load: where this fails, it tries an old format that unpickles.
                return load_pt2(stream).exported_programs["model"]
        except Exception as exc:  # torch raises whatever its deserializer raises
            raise ModelError(
                f"'{path}' can't be read by torch {torch.__version__}: {describe_error(exc)}",
                hint="save it with torch.export.save of the torch that is installed here",
            ) from exc


def check_archive(path: Path) -> None:
    """Refuses archives whose reading runs more than torch's own deserializer.

    Raises:
        ModelError: lists what is wrong.
        MissingDependencyError: nobody has looked at what the installed torch would run.
    """
    with _checked(path):
        pass


@contextmanager
def _checked(path: Path) -> Iterator[IO[bytes]]:
    """The open archive, so that what is read is what was looked at."""
    check_torch()
    hint = "torch.export.save writes such files"
    try:
        stream = path.open("rb")
    except OSError as exc:
        raise ModelError(f"'{path}' can't be read: {exc.strerror or exc}") from exc
    with stream:
        try:
            problems = find_dangers(stream)
        except Exception as exc:  # torch's reader raises RuntimeError, AssertionError and others
            text = f"'{path}' is no .pt2 archive, or a damaged one: {describe_error(exc)}"
            raise ModelError(text, hint) from exc
        if problems:
            raise ModelError(f"'{path}' is refused: " + "; ".join(problems), hint)
        stream.seek(0)
        yield stream
