"""A program file, run by ExecuTorch's bindings for Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch  # what the bindings exchange tensors with; they can't be imported before it

# Not through portable_lib, which imports the exporter and seconds of other packages with it.
from executorch.extension.pybindings import _C

from edgecompile.bench.worker import serve


class _Session:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        _C._unsafe_reset_threadpool(settings["threads"])
        self._program = _C._load_for_executorch(settings["path"])
        self._inputs = settings["inputs"]
        self._names = settings["outputs"]
        self.facts = {
            "version": metadata.version("executorch"),
            "threads": int(_C._threadpool_get_thread_count()),
            "bindings_bytes": os.stat(_C.__file__).st_size,
        }

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        tensors = tuple(torch.from_numpy(inputs[name]) for name in self._inputs)
        # The outputs are in the program's own memory until the next run.
        outputs = self._program.run_method("forward", tensors, clone_outputs=False)
        return {name: value.numpy() for name, value in zip(self._names, outputs, strict=True)}


if __name__ == "__main__":
    serve(_Session)
