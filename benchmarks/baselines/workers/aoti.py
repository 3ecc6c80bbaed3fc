"""A package that torch's AOTInductor made, loaded by torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._inductor import aoti_load_package

from edgecompile.bench.worker import serve


class _Session:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        self._model = aoti_load_package(settings["path"], run_single_threaded=False)
        self.facts = {"version": torch.__version__, "threads": torch.get_num_threads()}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            outputs = self._model(**{k: torch.from_numpy(v) for k, v in inputs.items()})
        return {name: tensor.numpy() for name, tensor in outputs.items()}


if __name__ == "__main__":
    serve(_Session)
