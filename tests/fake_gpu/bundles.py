"""A bundle with a real ONNX for the fakes of TensorRT and CUDA: two buckets, a table of weights."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.runtime.cpu.host import architecture
from tests.runtime.bundles import LENGTHS, ORIN, RECIPE, DummyBundle, pack_weights
from tests.runtime.golden_files import write_case

FOLDER = "code/jetson-orin/"
DEVICE = "name=Orin;cc=8.7;sm=8;memory=8589934592;integrated=1;driver=12060"
MODEL = "NVIDIA Jetson Orin Nano Developer Kit"
RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: x\n"
TABLE = np.random.default_rng(0).standard_normal((100, 2)).astype(np.float32)


def make_onnx() -> tuple[bytes, bytes]:
    """(model.onnx, its weights): looks words up in a table and sums those that the mask keeps."""
    onnx = __import__("pytest").importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    header = {"table": {"dtype": "F32", "shape": [100, 2], "data_offsets": [0, TABLE.nbytes]}}
    weights = pack_weights(json.dumps(header).encode(), TABLE.tobytes())
    table = onnx.TensorProto(name="table", data_type=types.FLOAT, dims=TABLE.shape)
    table.data_location = types.EXTERNAL
    for key, value in (
        ("location", "weights.fp16"),
        ("offset", str(len(weights) - TABLE.nbytes)),
        ("length", str(TABLE.nbytes)),
    ):
        table.external_data.add(key=key, value=value)
    axis = helper.make_tensor("axis", types.INT64, [1], [-1])
    first = helper.make_tensor("first", types.INT64, [1], [1])
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"], "lookup"),
        helper.make_node("Cast", ["attention_mask"], ["kept"], "cast", to=types.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "axis"], ["wide"], "widen"),
        helper.make_node("Mul", ["found", "wide"], ["states"], "mask"),
        helper.make_node("ReduceSum", ["states", "first"], ["sum"], "sum", keepdims=0),
        helper.make_node("Concat", ["sum", "sum"], ["embedding"], "twice", axis=1),
    ]
    words = ["batch", "length"]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info("input_ids", types.INT64, words),
            helper.make_tensor_value_info("attention_mask", types.INT64, words),
        ],
        [
            helper.make_tensor_value_info("embedding", types.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("states", types.FLOAT, ["batch", "length", 2]),
        ],
        [table, axis, first],
    )
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return model.SerializeToString(), weights


def run_eager(length: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of a length and what the model makes of them, in numpy."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 100, (1, length))
    mask = (random.random((1, length)) < 0.8).astype(np.int64)
    states = TABLE[ids] * mask[..., None].astype(np.float32)
    total = states.sum(axis=1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs, {"embedding": np.concatenate([total, total], axis=1), "states": states}


class GpuBundle(DummyBundle):
    """A DummyBundle whose TensorRT variant is real, as far as fakes can run it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.recipe = copy.deepcopy(RECIPE)
        variant = {**copy.deepcopy(ORIN), "arch": architecture(platform.machine())}
        self.document["variants"] = [variant]
        # The dummy of a probe can't be loaded, so it mustn't be this machine's.
        self.document["probes"] = {"none": "code/x86-64/libecprobe.so"}
        onnx, weights = make_onnx()
        self.files[FOLDER + "model.onnx"] = onnx
        self.files[FOLDER + "weights.fp16"] = weights
        for bucket, length in LENGTHS.items():
            self.files[f"golden/{bucket}-hint.npz"] = write_case(*run_eager(length, bucket))

    def add_bucket(self, lo: int, hi: int) -> None:
        """One more exact bucket, with a profile and a golden vector."""
        number = len(self.document["buckets"])
        batch = {"lo": 1, "hi": 2, "hint": 1}
        length = {"lo": lo, "hi": hi, "hint": hi}
        self.document["buckets"].append(
            {"mode": "exact", "axes": {"batch": batch, "length": length}}
        )
        self.document["axes"]["length"]["hi"] = hi
        shapes = {"min": [1, lo], "opt": [1, hi], "max": [2, hi]}
        self.recipe["profiles"].append({"input_ids": shapes, "attention_mask": shapes})
        self.recipe["predicted"]["scratch_bytes"].append(2 << 20)
        name = f"golden/{number}-hint.npz"
        self.document["golden"].append({"bucket": number, "case": "hint", "file": name})
        self.files[name] = write_case(*run_eager(hi, number))

    def add_rows(self, bucket: int) -> None:
        """A golden vector of two rows."""
        one, other = (run_eager(LENGTHS[bucket], seed) for seed in (8, 9))
        both = [
            {name: np.concatenate([array, other[part][name]]) for name, array in one[part].items()}
            for part in (0, 1)
        ]
        name = f"golden/{bucket}-rows.npz"
        self.document["golden"].append({"bucket": bucket, "case": "rows", "file": name})
        self.files[name] = write_case(*both)

    def set_opset(self, opset: int) -> None:
        """Another opset of the ONNX, whose operators are the same in it."""
        import onnx

        model = onnx.load_from_string(self.files[FOLDER + "model.onnx"])
        model.opset_import[0].version = opset
        self.files[FOLDER + "model.onnx"] = model.SerializeToString()

    def write(self, manifest: bytes | None = None) -> str:
        """Writes everything, the recipe as it is now."""
        self.put_recipe(self.recipe)
        return super().write(manifest)

    @property
    def onnx_sha256(self) -> str:
        """Of model.onnx."""
        return hashlib.sha256(self.files[FOLDER + "model.onnx"]).hexdigest()


def make_device_root(folder: Path) -> Path:
    """The folder for EDGECOMPILE_DEVICE_ROOT: the files of an Orin Nano with JetPack 6.2."""
    for name, text in (
        ("proc/device-tree/model", MODEL + "\0"),
        ("etc/nv_tegra_release", RELEASE),
        ("proc/meminfo", "MemTotal: 7990000 kB\nMemAvailable:    6000000 kB\n"),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
