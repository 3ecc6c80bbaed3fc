"""Writes a model's ONNX in float16 and inputs with eager's answers, for shapes.py on a device.

python benchmarks/engines/write_shapes.py MODEL FOLDER [EDGE...]

An EDGE is the length of a bucket, ascending; without any 16, 32, 64 and 128.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from shapes import BATCHES

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.export import export_model
from edgecompile.loaders.load import load_model
from edgecompile.onnx_files.build import build_onnx
from edgecompile.onnx_files.operators import OnnxTarget

#: Beside the edges; odd ones too.
LENGTHS = (5, 31, 100, 200, 400)


def main(source: str, folder: Path, edges: list[int]) -> None:
    """Writes FOLDER/{model.onnx,weights.fp16,float32.json,edges.json,cases.npz}, in opset 17 for TensorRT 8.6."""
    rows = max(BATCHES)
    model = load_model(Path(source), batch=(1, rows))
    longest = edges[-1]
    lengths, batches = AxisRange(1, longest, longest // 2), AxisRange(1, rows, 1)
    bucket = Bucket("exact", (("length", lengths), ("batch", batches)))
    exported = export_model(model, {name: (axis.lo, axis.hi) for name, axis in bucket.axes})
    target = OnnxTarget("8.6", 17)
    made = build_onnx(model, [bucket], "fp16", target, None, folder, exported=exported)
    (folder / "float32.json").write_text(json.dumps(made.float32))
    (folder / "edges.json").write_text(json.dumps(edges))
    arrays = {}
    for batch in BATCHES:
        for length in sorted({*edges, *(x for x in LENGTHS if x < longest)}):
            inputs = model.make_example({"length": length, "batch": batch}, seed=length)
            for kind, tensors in (("in", inputs), ("out", model.run(inputs))):
                for name, tensor in tensors.items():
                    arrays[f"{batch}:{length}:{kind}:{name}"] = tensor.detach().numpy()
    np.savez_compressed(folder / "cases.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(x) for x in sys.argv[3:]] or [16, 32, 64, 128])
