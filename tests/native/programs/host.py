"""A model's program compiled for this machine, and the host-facing C ABI that runs it, by ctypes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgecompile.backends.artifact import TensorStore
from edgecompile.backends.cpu.backend import InductorCpuBackend, ProgramTask
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.export import export_model
from edgecompile.loaders.load import load_model
from tests.native.programs.aoti import (
    NAMES,
    NativeTensor,
    describe,
    load_shim,
    own_runtime,
    own_variant,
)

VOCABULARY = 50
LONGEST = 512
LENGTHS = (1, 2, 17, 255, 512)


def make(kind: type[torch.nn.Module]) -> dict[str, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind().eval()
    return {
        "module": model,
        "inputs": {"ids": torch.zeros(1, 8, dtype=torch.int64)},
        "axes": {"ids": {1: "length"}},
        "limits": {"length": (1, LONGEST)},
        "bounds": {"ids": (0, VOCABULARY - 1)},
    }


class Failure(Exception):
    """A host function failed; the message is ec_last_error's."""


@dataclass(frozen=True)
class Built:
    library: Path
    weights: dict[str, np.ndarray]
    model: torch.nn.Module


def build(kind: type[torch.nn.Module], folder: Path, made: dict[str, Any] | None = None) -> Built:
    """Builds what `make` makes of a module, or `made` as a factory makes it, with one length."""
    made = made or make(kind)
    loaded = load_model(made)
    exported = export_model(loaded)
    variant = own_variant()
    store = TensorStore(folder / "tensors")
    shortest, longest = made["limits"]["length"]
    bucket = Bucket("exact", (("length", AxisRange(shortest, longest, max(shortest, 64))),))
    library = folder / "lookup.so"
    task = ProgramTask(exported, bucket, variant, own_runtime(), library, store)
    artifact = InductorCpuBackend().compile_program(task)
    load_shim()  # the library finds the runtime by its SONAME among those that are loaded
    weights = {
        name: np.fromfile(store.path(t), t.dtype).reshape(t.shape)
        for name, t in artifact.constants.items()
    }
    return Built(artifact.library, weights, loaded.module)


class Host:
    """edgecompile_abi.h through ctypes."""

    def __init__(self) -> None:
        self.native = load_shim().library
        for name in ("ec_outputs_count", "ec_program_input_count", "ec_program_output_count"):
            getattr(self.native, name).restype = ctypes.c_int64
            getattr(self.native, name).argtypes = [ctypes.c_void_p]
        for name in ("ec_outputs_free", "ec_program_close"):
            getattr(self.native, name).restype = None
            getattr(self.native, name).argtypes = [ctypes.c_void_p]

    def check(self, status: int) -> None:
        if status != 0:
            raise Failure(self.native.ec_last_error().decode())

    def open(self, path, weights, concurrency: int = 1) -> ctypes.c_void_p:
        table = (NativeTensor * max(len(weights), 1))(*(describe(k, v) for k, v in weights.items()))
        handle = ctypes.c_void_p()
        self.check(
            self.native.ec_program_open(
                str(path).encode(),
                table,
                ctypes.c_int64(len(weights)),
                concurrency,
                ctypes.byref(handle),
            )
        )
        return handle

    def start(self, program, *inputs: np.ndarray) -> ctypes.c_void_p:
        table = (NativeTensor * max(len(inputs), 1))(*(describe("ids", x) for x in inputs))
        outputs = ctypes.c_void_p()
        count = ctypes.c_int64(len(inputs))
        self.check(self.native.ec_program_run(program, table, count, ctypes.byref(outputs)))
        return outputs

    def read(self, outputs) -> list[np.ndarray]:
        result = []
        for i in range(self.native.ec_outputs_count(outputs)):
            view = NativeTensor()
            self.check(self.native.ec_outputs_get(outputs, ctypes.c_int64(i), ctypes.byref(view)))
            buffer = (ctypes.c_char * view.nbytes).from_address(view.data)
            flat = np.frombuffer(buffer, NAMES[view.dtype])
            sizes, strides = view.sizes[: view.ndim], view.strides[: view.ndim]
            steps = [s * flat.itemsize for s in strides]
            result.append(np.lib.stride_tricks.as_strided(flat, sizes, steps).copy())
        return result

    def run(self, program, *inputs: np.ndarray) -> list[np.ndarray]:
        outputs = self.start(program, *inputs)
        result = self.read(outputs)
        self.native.ec_outputs_free(outputs)
        return result

    def close(self, program) -> None:
        self.native.ec_program_close(program)
