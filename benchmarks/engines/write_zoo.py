"""Writes the ONNX and golden vectors of the zoo's architectures, for zoo.py on a device.

PYTHONPATH=. python benchmarks/engines/write_zoo.py FOLDER PRECISION [NAME ...]

Makes FOLDER/NAME/{model.onnx,weights.PRECISION,case-N.npz,zoo.json} of each, in opset 17 for TensorRT 8.6,
in fp32 as it is exported, else as bundles have it. Folders that are there already are left alone.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import EdgecompileError
from edgecompile.export.export import export_model
from edgecompile.loaders.load import load_model
from edgecompile.onnx_files.build import build_onnx
from edgecompile.onnx_files.export import export_onnx
from edgecompile.onnx_files.operators import OnnxTarget, check_operators
from edgecompile.onnx_files.weights import write_onnx
from tests.zoo.catalogue import ENTRIES

TARGET = OnnxTarget("8.6", 17)
_LONGEST = 64
_PATIENCE = 150  # seconds for one architecture


def write_entry(name: str, folder: Path, precision: str) -> Mapping[str, Any]:
    """Writes the files of one architecture, and returns its line of the table so far."""
    model = load_model(ENTRIES[name].make(), name=name)
    sizes = {axis: limits.lo for axis, limits in model.axes.items()}
    limits = model.axes[model.length_axis]
    high = limits.hi or max(_LONGEST, 2 * limits.lo)
    exported = export_model(
        model, {axis: (lo, high if axis == model.length_axis else lo) for axis, lo in sizes.items()}
    )
    refused, float32 = [], None
    if precision == "fp32":
        with tempfile.TemporaryDirectory() as scratch:
            graph = export_onnx(exported, TARGET.opset, Path(scratch))
            refused = sorted({str(item) for item in check_operators(graph, TARGET).violations})
            write_onnx(graph, folder / "model.onnx", folder / "weights.fp32")
            taken = graph.inputs
    else:
        ranges = {axis: AxisRange(lo, lo, lo) for axis, lo in sizes.items()}
        ranges[model.length_axis] = AxisRange(limits.lo, high, high)
        first = (model.length_axis, ranges.pop(model.length_axis))
        bucket = Bucket("exact", (first, *ranges.items()))
        made = build_onnx(model, [bucket], precision, TARGET, None, folder, exported=exported)
        taken, float32 = made.inputs, made.float32
    lengths = sorted({limits.lo, (limits.lo + high) // 2, high})
    for number, length in enumerate(lengths):
        inputs = model.make_example({**sizes, model.length_axis: length}, seed=number)
        arrays = {f"in:{key}": value.numpy() for key, value in inputs.items()}
        outputs = model.run(inputs)
        arrays.update({f"out:{key}": value.detach().numpy() for key, value in outputs.items()})
        np.savez(folder / f"case-{number}.npz", **arrays)
    edges = (limits.lo, high, high)
    shapes = {
        spec.name: [
            [edge if dim == model.length_axis else sizes.get(str(dim), dim) for dim in spec.shape]
            for edge in edges
        ]
        for spec in exported.inputs
        if spec.name in taken
    }
    return {
        "state": "written",
        "precision": precision,
        "refused": refused,
        "inputs": shapes,
        "float32": float32,
    }


def in_turn() -> Iterator[str]:
    """Names from all groups in turn, so that few of them are still a mix."""
    groups: dict[str, list[str]] = {}
    for entry in ENTRIES.values():
        groups.setdefault(entry.group, []).append(entry.name)
    for names in zip_longest(*groups.values()):
        yield from filter(None, names)


def _stop(number: int, frame: object) -> None:
    raise TimeoutError(f"not exported within {_PATIENCE} s")


def main(root: Path, precision: str, names: list[str]) -> None:
    """Writes all, or those of ``names``."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    for name in names or in_turn():
        folder = root / name
        if (folder / "zoo.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        signal.alarm(_PATIENCE)
        try:
            line = write_entry(name, folder, precision)
        except EdgecompileError as error:
            line = {"state": type(error).__name__, "error": " ".join(error.message.split())[:400]}
        except Exception as error:  # transformers and torch raise anything
            line = {"state": type(error).__name__, "error": " ".join(str(error).split())[:400]}
        signal.alarm(0)
        document = {"name": name, "group": ENTRIES[name].group, **line}
        (folder / "zoo.json").write_text(json.dumps(document))
        print(name, document["state"], *document.get("refused", ())[:2], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
