"""The model as it is, run by torch; on request through torch.compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class _Session:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        from edgecompile.loaders.load import load_model
        from edgecompile.models.loaded import LoadOptions

        torch.set_num_threads(settings["threads"])
        batch = settings["batch"]
        load = LoadOptions.from_json(settings.get("load"))
        loaded = load_model(settings["spec"], load, batch=None if batch is None else tuple(batch))
        self._module: Any = loaded.module
        if settings["compile"]:
            self._module = torch.compile(loaded.module, dynamic=True, options={"freezing": True})
        self.facts = {"version": torch.__version__, "threads": torch.get_num_threads()}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        # no_grad, not inference_mode: Inductor freezes weights under the former only.
        with torch.no_grad():
            outputs = self._module(**{k: torch.from_numpy(v) for k, v in inputs.items()})
        return {name: tensor.numpy() for name, tensor in outputs.items()}


def open_session(settings: Mapping[str, Any]) -> _Session:
    """Loads the model ``spec`` with ``batch``, ``load`` and ``threads``; ``compile``: with torch.compile."""
    return _Session(settings)
