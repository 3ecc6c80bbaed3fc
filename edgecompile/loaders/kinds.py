"""The kind of a model specification, told by its files alone: a kind that edgecompile can't start from is
refused with its name and a cure before anything is loaded."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.loaders.checkpoints.gguf_header import MAGIC, read_gguf_header
from edgecompile.loaders.checkpoints.packing import read_packing
from edgecompile.loaders.folders.files import read_object, weight_files

_FACTORY = re.compile(r"^(?P<where>.+):(?P<factory>[A-Za-z_][\w.]*)$", re.DOTALL)
_URL = re.compile(r"(?:hf|https?)://\S+")
_HUB_URL = re.compile(
    r"(?:hf://|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/)(?:models/)?"
    r"(?P<name>[\w.-]+(?:/(?!tree/|blob/|resolve/)[\w.-]+)?)"
)
# Of what torch.export.save writes; TorchScript may have a folder of that name as well.
_PROGRAM = re.compile(r"(?:^|/)models/[^/]+\.json$")
_HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")

#: Types of policies that are read, as their config.json has them.
POLICIES = ("act", "diffusion", "smolvla")

_FORMS = (
    "a model is a folder with config.json and safetensors weights, a .gguf file, file.py:factory, "
    "package.module:factory, a saved .pt2 or an .onnx file"
)
_FROM_TORCH = (
    "edgecompile starts from the PyTorch model: give its folder, or a factory that builds it"
)
_PICKLED = (
    "reading it could run code, and it doesn't say what the model is: write a factory "
    "(file.py:function) that builds the module and loads them, or a .pt2 with torch.export.save"
)
_TORCHSCRIPT = (
    "a TorchScript program",
    (
        "start from the nn.Module that it was made of: a factory (file.py:function), or a .pt2 with "
        "torch.export.save"
    ),
)
_WEIGHTS = "a file of pickled weights, not a whole model", _PICKLED
_ONNX = "an ONNX model", "give that file itself"
_TFLITE = "a TensorFlow Lite model", _FROM_TORCH
_KERAS = "a Keras or TensorFlow model", _FROM_TORCH
#: What files of other formats are, and what to do, by suffix.
_FOREIGN: Mapping[str, tuple[str, str]] = {
    ".onnx": _ONNX,
    ".tflite": _TFLITE,
    ".h5": _KERAS,
    ".hdf5": _KERAS,
    ".keras": _KERAS,
    ".pb": _KERAS,
    ".mlmodel": ("a Core ML model", _FROM_TORCH),
    ".mlpackage": ("a Core ML model", _FROM_TORCH),
    ".engine": ("a TensorRT engine", _FROM_TORCH),
    ".msgpack": ("a file of weights of a Flax model", _FROM_TORCH),
}
_PICKLED_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_FILES: Mapping[str, tuple[str, str]] = {
    **_FOREIGN,
    **dict.fromkeys(_PICKLED_SUFFIXES, _WEIGHTS),
    ".json": ("a JSON file", "give the folder that holds it"),
    ".py": ("a Python file", "name the function that makes the model: file.py:function"),
}
#: The same by how files begin, whatever they are called: offset, bytes.
_MAGIC = (
    (4, b"TFL3", _TFLITE),
    (0, b"\x89HDF\r\n\x1a\n", _KERAS),
)
_HEAD_BYTES = 16


def check_form(spec: str | Path) -> None:
    """Refuses what is no model, before anything of it is loaded.

    Args:
        spec: the specification that the user wrote. Only importing a dotted module shows whether it
            exists.

    Raises:
        ModelError: there is no such file or folder, it has another format, or lacks the files of a
            model; says what it is and what to do.
    """
    text = str(spec)
    path = Path(text).expanduser()
    factory = split_factory(text)
    gguf = find_gguf(path)
    if gguf is not None:
        read_gguf_header(gguf)
    elif path.is_dir():
        _check_folder(path)
    elif path.is_file():
        _check_file(path)
    elif _URL.match(text) or factory is None:
        raise ModelError(f"there is no model '{text}'", hint=_missing_hint(text))
    elif names_file(factory[0]) and not Path(factory[0]).expanduser().is_file():
        raise ModelError(
            f"there is no file '{factory[0]}'", hint="a factory is written file.py:function"
        )


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that a path names, or the only one in a folder without safetensors; None: there is none.

    Raises:
        ModelError: the folder has several.
    """
    if path.is_dir():
        files = [] if any(path.glob("*.safetensors*")) else sorted(path.glob("*.gguf"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files[:5])
            raise ModelError(f"'{path}' has {len(files)} GGUF files: {names}", hint="name one")
        return files[0] if files else None
    if not path.is_file():
        return None
    return path if path.suffix.lower() == ".gguf" or _head_of(path).startswith(MAGIC) else None


def split_factory(text: str) -> tuple[str, str] | None:
    """The file or module, and the function, of ``file.py:factory``; None if it isn't so written."""
    match = _FACTORY.match(text)
    return None if match is None else (match["where"], match["factory"])


def names_file(where: str) -> bool:
    """Whether a factory is looked for in a file rather than in a module with a dotted name."""
    return where.endswith(".py") or "/" in where


def is_program_archive(path: Path) -> bool:
    """Whether a file is a zip archive that holds an exported program."""
    return any(_PROGRAM.search(name) for name in _names_in(path))


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuses a parsed config.json that names no kind of model, or weights of a kind that isn't read.

    Raises:
        ModelError: lists what is wrong.
    """
    if is_policy(config):
        if config["type"] not in POLICIES:
            raise ModelError(
                f"'{folder}' is a policy of the type {config['type']!r}",
                hint=f"policies of the types {', '.join(POLICIES)} are read; for others write a factory "
                "(file.py:function) that returns the network with example inputs",
            )
        return
    read_packing(folder, config)
    if not isinstance(config.get("model_type"), str):
        raise ModelError(
            f"'{folder}': config.json has no model_type",
            hint="give a folder written by save_pretrained",
        )


def _check_folder(folder: Path) -> None:
    inner = first_module(folder)
    if not (inner / "config.json").exists():
        _refuse_without_config(inner if inner.is_dir() else folder)
    _check_config(inner, read_object(inner / "config.json", "the model's configuration"))
    names = sorted(path.name for path in inner.iterdir())
    if not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        _refuse_foreign(names, f"'{inner}' has no safetensors weights")
    weight_files(inner)


def is_policy(config: Mapping[str, Any]) -> bool:
    """Whether a parsed config.json is that of a robot's policy, as LeRobot writes it."""
    return isinstance(config.get("type"), str) and "input_features" in config


def is_policy_folder(path: Path) -> bool:
    """Whether a path is the folder of a robot's policy."""
    file = path / "config.json"
    return file.is_file() and is_policy(read_object(file, "the model's configuration"))


def first_module(folder: Path) -> Path:
    """The transformer's folder where a modules.json names it; else the folder itself."""
    try:
        entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        inner = folder / str(entries[0].get("path", ""))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return folder  # there is none, or loading says what is wrong with it
    return inner if inner.resolve().is_relative_to(folder.resolve()) else folder


def find_tokenizer(model: str | Path) -> Path | None:
    """The tokenizer of a model folder, of the transformer in a pipeline's folder, or of a GGUF file; None: the
    model is of another kind.

    Where a folder has none, the path at which it should be: reading it says so.
    """
    folder = Path(model).expanduser()
    gguf = find_gguf(folder)
    if gguf is not None:
        from edgecompile.loaders.checkpoints.gguf import gguf_tokenizer

        return gguf_tokenizer(gguf)
    if not folder.is_dir():
        return None
    inner = sorted(path.parent / "tokenizer.json" for path in folder.glob("*/config.json"))
    there = [path for path in (folder / "tokenizer.json", *inner) if path.is_file()]
    return there[0] if there else folder / "tokenizer.json"


def _refuse_without_config(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    start = f"'{folder}' has no config.json (the model's configuration)"
    if not names:
        raise ModelError(f"'{folder}' is an empty folder", hint=_FORMS)
    if "adapter_config.json" in names:
        raise ModelError(
            f"'{folder}' holds an adapter (LoRA), not a whole model",
            hint="merge it first: PeftModel.from_pretrained(…).merge_and_unload(), "
            "then save_pretrained, and give that folder",
        )
    if "model_index.json" in names:
        raise ModelError(
            f"'{folder}' holds a pipeline of several models (diffusers), not one model",
            hint="give the folder of one of them, or a factory that builds it",
        )
    _refuse_foreign(names, start)
    held = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    raise ModelError(f"{start}; it holds {held}", hint="model folders are made by save_pretrained")


def _refuse_foreign(names: Iterable[str], start: str) -> None:
    """Names the first file of another format; of pickled weights others tell."""
    suffixes = {name: Path(name).suffix.lower() for name in names}
    if any(suffix in _PICKLED_SUFFIXES for suffix in suffixes.values()):
        return
    for name, suffix in suffixes.items():
        if suffix in _FOREIGN:
            what, cure = _FOREIGN[suffix]
            raise ModelError(f"{start}; {name} is {what}", hint=cure)


def _check_file(path: Path) -> None:
    if path.suffix.lower() in (".pt2", ".onnx") or is_program_archive(path):
        return
    what, cure = _told_by_content(path) or _FILES.get(path.suffix.lower(), ("", ""))
    if path.suffix == ".safetensors":
        what = "a file of weights, without the model's configuration"
        cure = f"give the folder that holds it beside its config.json: {path.absolute().parent}"
    said = f": it is {what}" if what else ""
    raise ModelError(f"edgecompile cannot read '{path}'{said}", hint=cure or _FORMS)


def _told_by_content(path: Path) -> tuple[str, str] | None:
    """The kind of a file, by its first bytes or by the contents of an archive of torch."""
    names = _names_in(path)
    if any(name.endswith("/constants.pkl") or "/code/" in f"/{name}" for name in names):
        return _TORCHSCRIPT
    if any(name.endswith("data.pkl") for name in names):
        return _WEIGHTS
    head = _head_of(path)
    return next((kind for at, magic, kind in _MAGIC if head[at:].startswith(magic)), None)


def _head_of(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(_HEAD_BYTES)
    except OSError as error:
        raise ModelError(f"'{path}' can't be read: {error.strerror or error}") from error


def _names_in(path: Path) -> Iterable[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile):
        return ()


def _missing_hint(text: str) -> str:
    if text.endswith(".py"):
        return "the file doesn't exist; a factory is written file.py:function"
    hub = _HUB_URL.match(text)
    if hub is not None:
        return _download(hub["name"], "nothing is ever fetched: download it first, with")
    if _URL.match(text):
        return f"nothing is ever fetched; {_FORMS}"
    suffix = Path(text).suffix.lower()
    if suffix in _FILES or suffix in (".pt2", ".gguf", ".safetensors", ".ecb"):
        return "the file doesn't exist"
    if _HUB_NAME.fullmatch(text):
        start = "if that is the name of a model on a hub: nothing is ever fetched, download it with"
        return _download(text, start)
    return _FORMS


def _download(name: str, start: str) -> str:
    folder = name.rpartition("/")[2]
    return f"{start} 'hf download {name} --local-dir {folder}', and give the folder {folder}"
