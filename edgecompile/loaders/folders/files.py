"""The files of a model folder in Hugging Face layout: read and checked; nothing is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_MAX_JSON_BYTES = 64 << 20


def read_json(path: Path, what: str) -> Any:
    """The parsed content of a JSON file.

    Raises:
        ModelError: it is missing, too large or no JSON.
    """
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelError(f"'{path}' has {path.stat().st_size} bytes, too many for {what}")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ModelError(f"'{path.parent}' has no {path.name} ({what})") from exc
    except IsADirectoryError as exc:
        raise ModelError(f"'{path}' is a folder, not {what}") from exc
    except UnicodeDecodeError as exc:
        raise ModelError(f"'{path}' ({what}) isn't UTF-8: byte {exc.start}") from exc
    except json.JSONDecodeError as exc:
        raise ModelError(
            f"'{path}' ({what}) isn't JSON: line {exc.lineno}, column {exc.colno}: {exc.msg}",
            hint="the file may be cut short, or a pointer of git-lfs; fetch the model again",
        ) from exc


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Like :func:`read_json`, for a file that must hold an object."""
    value = read_json(path, what)
    if not isinstance(value, dict):
        raise ModelError(f"'{path}' ({what}) holds a {type(value).__name__}, not an object")
    return value


def optional_object(path: Path, what: str) -> dict[str, Any]:
    """Like :func:`read_object`; empty if there is no such file."""
    return read_object(path, what) if path.is_file() else {}


def find_weights(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder, each with a header that reads and all its data.

    Raises:
        ModelError: there are none, shards are missing, or files are damaged; lists all of it.
    """
    files = weight_files(folder)
    problems = [text for file in files if (text := _damage(file)) is not None]
    if problems:
        raise ModelError(
            f"'{folder}': " + "; ".join(problems), hint="fetch or write the weights again"
        )
    return files


def stored_shapes(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in safetensors files that :func:`find_weights` found, by name."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(file, framework="numpy") as weights:
            names = list(weights.keys())
            shapes |= {name: tuple(weights.get_slice(name).get_shape()) for name in names}
    return shapes


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder; what they hold isn't looked at.

    Raises:
        ModelError: there are none, or shards are missing.
    """
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    if (folder / INDEX).is_file():
        return _shards(folder)
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"'{folder}' holds its weights as {', '.join(pickled[:5])}: such files are refused, "
            "since loading them can run code",
            hint="convert them once where you trust them: "
            "AutoModel.from_pretrained(DIR).save_pretrained(DIR, safe_serialization=True)",
        )
    other = sorted(path.name for path in folder.glob("*.safetensors"))
    if "adapter_model.safetensors" in other:
        raise ModelError(
            f"'{folder}' holds an adapter, not a whole model",
            hint="merge it first: PeftModel.from_pretrained(…).merge_and_unload(), "
            "then save_pretrained",
        )
    raise ModelError(
        f"'{folder}' has neither {WEIGHTS} nor {INDEX}"
        + (f"; it has {', '.join(other[:5])}" if other else ""),
        hint="model folders are made by save_pretrained",
    )


def _shards(folder: Path) -> tuple[Path, ...]:
    index = read_object(folder / INDEX, "the index of the weights")
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise ModelError(f"'{folder / INDEX}' has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ModelError(f"'{folder / INDEX}' points outside its folder: {', '.join(outside)}")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"'{folder}': {len(missing)} of {len(names)} files of weights are missing: "
            + ", ".join(missing[:10]),
            hint="fetch the whole folder",
        )
    return tuple(folder / name for name in names)


def _damage(file: Path) -> str | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            return None
    except (SafetensorError, OSError) as exc:
        with file.open("rb") as stream:
            start = stream.read(20)
        if start.startswith(b"version https://git-"):
            return f"{file.name} is a pointer of git-lfs, not the weights"
        return f"{file.name} is damaged: {exc}"


def plain_name(text: str) -> str:
    """``text`` made of what a manifest allows in names."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip(".+-")[:100] or "model"
