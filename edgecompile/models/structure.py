"""What of a model decides how long it takes to run: its structure, without the weights' values."""

from __future__ import annotations

import hashlib
import json

from edgecompile.models.loaded import LoadedModel

__all__ = ["model_structure"]


def model_structure(model: LoadedModel) -> str:
    """A SHA-256, in hexadecimal, of the model's modules, tensors, inputs and outputs.

    Modules count by name, class and printed options, tensors by name, shape and dtype. Values
    don't count: a model that was trained further costs the same, so measured costs stay good. An
    axis' upper limit doesn't count either, as it bounds what is served, not what it costs.
    """
    modules = []
    for name, module in model.module.named_modules():
        kind = type(module)
        modules.append([name, kind.__module__, kind.__qualname__, module.extra_repr()])
    tensors = sorted(
        [name, list(tensor.shape), str(tensor.dtype)]
        for name, tensor in model.module.state_dict().items()
    )
    inputs = [[i.name, i.dtype, list(i.shape)] for i in model.inputs]
    outputs = [[o.name, o.dtype, list(o.shape)] for o in model.outputs]
    text = json.dumps([modules, tensors, inputs, outputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
