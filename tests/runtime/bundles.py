"""Small bundles for tests: complete and valid, except that their libraries are dummies.

Everything up to loading native code can be tested on them, and every rule of the format broken.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.golden_files import write_case

LENGTHS = {0: 7, 1: 40}  # of the golden vectors, by bucket

DOCUMENT: dict[str, Any] = {
    "format_version": 1,
    "name": "tiny",
    "built_by": {"edgecompile": "0.1.0"},
    "precision": "fp32",
    "inputs": [
        {
            "name": "input_ids",
            "dtype": "int64",
            "shape": ["batch", "length"],
            "pad": 0,
            "bounds": [0, 99],
        },
        {
            "name": "attention_mask",
            "dtype": "int64",
            "shape": ["batch", "length"],
            "pad": 0,
            "bounds": [0, 1],
        },
    ],
    "outputs": [
        {"name": "embedding", "dtype": "float32", "shape": ["batch", 4]},
        {"name": "states", "dtype": "float32", "shape": ["batch", "length", 2]},
    ],
    "axes": {"batch": {"lo": 1, "hi": 2}, "length": {"lo": 1, "hi": 64}},
    "length_axis": "length",
    "buckets": [
        {
            "mode": "exact",
            "axes": {
                "batch": {"lo": 1, "hi": 2, "hint": 1},
                "length": {"lo": 1, "hi": 32, "hint": 16},
            },
        },
        {
            "mode": "pad",
            "axes": {
                "batch": {"lo": 1, "hi": 2, "hint": 1},
                "length": {"lo": 33, "hi": 64, "hint": 64},
            },
        },
    ],
    "variants": [
        {
            "name": "x86-64-v3",
            "arch": "x86-64",
            "backend": "aoti-cpu",
            "requires": ["avx2", "fma"],
            "glibc": "2.28",
            "runtime": "code/x86-64-v3/libeckernels-0.so",
            "programs": ["code/x86-64-v3/bucket-0.so", "code/x86-64-v3/bucket-1.so"],
            "rank": 30,
        }
    ],
    "probes": {"x86-64": "code/x86-64/libecprobe.so"},
    "weights": {"fp32": "weights.fp32"},
    "golden": [
        {"bucket": 0, "case": "hint", "file": "golden/0-hint.npz"},
        {"bucket": 1, "case": "hint", "file": "golden/1-hint.npz"},
    ],
    "tolerance": {"atol": 1e-5, "rtol": 1e-4},
    "plan": {},
    "expected": {},
}


RECIPE: dict[str, Any] = {
    "recipe_version": 1,
    "onnx": "model.onnx",
    "weights": "weights.fp16",
    "opset": 20,
    "precision": "fp16",
    "strongly_typed": True,
    "padding": True,
    "tolerance": {"atol": 1e-5, "rtol": 1e-4},
    "min_cosine": 0.9999,
    "jetpack": "6.2",
    "tensorrt": {"least": "10.3", "below": "11.0"},
    "device": {
        "name": "jetson-orin-nano",
        "compute_capability": "8.7",
        "sm_count": 8,
        "memory_bytes": 8 << 30,
        "models": ["Jetson Orin Nano", "Jetson-Orin-Nano"],
    },
    "inputs": [
        {"name": "input_ids", "dtype": "int64"},
        {"name": "attention_mask", "dtype": "int64"},
    ],
    "outputs": [
        {"name": "embedding", "dtype": "float32"},
        {"name": "states", "dtype": "float32"},
    ],
    "profiles": [
        {
            "input_ids": {"min": [1, 1], "opt": [1, 16], "max": [2, 32]},
            "attention_mask": {"min": [1, 1], "opt": [1, 16], "max": [2, 32]},
        },
        {
            "input_ids": {"min": [1, 64], "opt": [1, 64], "max": [2, 64]},
            "attention_mask": {"min": [1, 64], "opt": [1, 64], "max": [2, 64]},
        },
    ],
    "builder": {"optimization_level": 3, "workspace_bytes": 1 << 30},
    "predicted": {
        "build_bytes": 1 << 30,
        "engine_bytes": 1 << 20,
        "scratch_bytes": [1 << 20, 2 << 20],
        "build_seconds": None,
        "how": "a guess for tests",
    },
}
ORIN: dict[str, Any] = {
    "name": "jetson-orin",
    "arch": "aarch64",
    "backend": "tensorrt",
    "requires": [],
    "glibc": None,
    "recipe": "code/jetson-orin/recipe.json",
    "rank": 100,
}
DELETE = object()


def each_rule(names: str, cases: Sequence[Any]) -> pytest.MarkDecorator:
    """Runs a test for each case; the first of its parts, the rule that it breaks, is in the test's name."""
    return pytest.mark.parametrize(
        names, cases, ids=[f"{case[0]}-{number}" for number, case in enumerate(cases)]
    )


def put(document: Any, path: str, value: Any) -> None:
    """Sets ``path`` ("a.0.b"; "~" stands for a dot within a key), deletes or appends it."""
    *parents, last = [part.replace("~", ".") for part in path.split(".")]
    if parents and parents[0] == "files" and isinstance(value, dict):
        parents, last = ["files"], path[len("files.") :].replace("~", ".")  # paths keep their dots
    for part in parents:
        document = document[int(part)] if isinstance(document, list) else document[part]
    if isinstance(document, list) and int(last) == len(document):
        document.append(value)
    elif value is DELETE:
        del document[int(last) if isinstance(document, list) else last]
    else:
        document[int(last) if isinstance(document, list) else last] = value


def make_weights(header: dict[str, Any] | None = None, data: bytes | None = None) -> bytes:
    """The bytes of a weights file; by default three tensors, one of them of 6 bytes."""
    if header is None:
        header = {
            "__metadata__": {"format": "edgecompile"},
            "a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]},
            "b": {"dtype": "I16", "shape": [3], "data_offsets": [64, 70]},
            "__pad.0": {"dtype": "U8", "shape": [58], "data_offsets": [70, 128]},
            "c": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [128, 136]},
        }
    if data is None:
        data = (
            np.arange(16, dtype="<f4").tobytes()
            + np.arange(3, dtype="<i2").tobytes()
            + bytes(58)
            + np.arange(4, dtype="<u2").tobytes()
        )
    return pack_weights(json.dumps(header).encode(), data)


def pack_weights(text: bytes, data: bytes) -> bytes:
    """Header and data as a file, the header padded so that the data begins aligned."""
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text + data


def make_case(length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs of the right dtypes and shapes; there is no model behind them."""
    inputs = {
        "input_ids": np.arange(length, dtype=np.int64)[None] % 100,
        "attention_mask": np.ones((1, length), dtype=np.int64),
    }
    outputs = {
        "embedding": np.zeros((1, 4), dtype=np.float32),
        "states": np.zeros((1, length, 2), dtype=np.float32),
    }
    return inputs, outputs


class DummyBundle:
    """A bundle in memory: change ``document`` and ``files``, then ``write``.

    ``write`` lists the files with their sizes and hashes unless ``document`` has ``files``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.document = copy.deepcopy(DOCUMENT)
        self.files = {
            "weights.fp32": make_weights(),
            "code/x86-64/libecprobe.so": b"no probe",
            "code/x86-64-v3/libeckernels-0.so": b"no runtime",
            "code/x86-64-v3/bucket-0.so": b"no program 0",
            "code/x86-64-v3/bucket-1.so": b"no program 1",
            "reports/plan.json": b"{}",
        }
        for bucket, length in LENGTHS.items():
            self.files[f"golden/{bucket}-hint.npz"] = write_case(*make_case(length))

    def add_tensorrt(self) -> dict[str, Any]:
        """Adds a TensorRT variant, its files dummies, and returns a copy of its recipe."""
        self.document["variants"].append(copy.deepcopy(ORIN))
        self.files["code/jetson-orin/model.onnx"] = b"no model"
        self.files["code/jetson-orin/weights.fp16"] = make_weights()
        self.put_recipe(RECIPE)
        return copy.deepcopy(RECIPE)

    def put_recipe(self, recipe: dict[str, Any]) -> None:
        """Replaces the recipe of that variant."""
        self.files[ORIN["recipe"]] = json.dumps(recipe).encode()

    def listed(self) -> dict[str, Any]:
        """The manifest with all its files listed."""
        entries = {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(self.files.items())
        }
        return {**copy.deepcopy(self.document), "files": entries}

    def write(self, manifest: bytes | None = None) -> str:
        """Writes everything; ``manifest`` replaces the bytes of the manifest."""
        for name, data in self.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if manifest is None:
            document = self.document if "files" in self.document else self.listed()
            manifest = json.dumps(document).encode()
        (self.folder / "manifest.json").write_bytes(manifest)
        return str(self.folder)


def change_libraries(folder: Path) -> None:
    """Gives every library of a written bundle another content and the same code and SONAME.

    As another linker would. Files are replaced, so those that share a link stay as they are.
    """
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for name, entry in manifest["files"].items():
        if name.endswith(".so"):
            # What lies behind the last section is nobody's.
            content = (folder / name).read_bytes() + b"another"
            (folder / name).unlink()
            (folder / name).write_bytes(content)
            entry.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
