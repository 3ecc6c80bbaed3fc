"""The process of one baseline: loads a model once, then runs what it is asked to and reports times.

Requests and answers are JSON objects, one a line, on the standard streams:

- ``{"op": "open", "settings": {"threads": 2, …}, "specs": […], "sizes": {…}, "length_axis": "length"}``
  loads the model; the answer has ``facts``: plain values, such as ``version`` and ``threads``.
- ``{"op": "run", "lengths": [12, 40], "seed": 7}`` runs each length once, on the inputs of
  :func:`make_inputs`; the answer has ``ns``: nanoseconds of each run.
- ``{"op": "save", "lengths": [12, 40], "seed": 7, "path": "out.npz"}`` writes the outputs as
  ``<length>.<output>``; asked only where outputs are compared with eager's.
- ``{"op": "close"}`` ends the process.

An answer ``{"error": "…"}`` ends the benchmark. A baseline in Python passes its ``open_session`` to
:func:`serve`. This file imports nothing of edgecompile but what a session does: it is also run by path,
beside the runtime in a bundle.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

_STREAMS = {"resident": "VmRSS", "anonymous": "RssAnon", "file": "RssFile"}
# Frameworks whose presence in a process matters to what is claimed of it.
_NOTABLE = ("torch", "onnxruntime", "openvino", "executorch", "transformers", "onnx", "scipy")


class Session(Protocol):
    """A loaded model. ``facts`` holds plain values: versions, the number of threads it uses."""

    facts: Mapping[str, Any]

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """One call, numpy arrays in, numpy arrays out; the arrays live until the next call."""


def make_inputs(
    specs: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """Arrays by input name, from a seed: the same bytes in every process.

    Integers whose bounds hold more than two values are uniform within them, floats without bounds
    are normal, floats with bounds uniform; all else is one, or the nearest allowed value: a mask
    that masks nothing. ``draw``, where a specification has it, is narrower than its ``bounds``.

    Args:
        specs: dicts with ``name``, ``dtype``, ``shape`` (sizes or names of axes), ``bounds`` and
            ``draw`` ([low, high] or None). A size or an end that is a sum of axes is
            ``{"terms": {axis: factor}, "constant": number}``.
        sizes: size of every axis.
        seed: the seed of the values. Legacy seeding, because numpy promises its stream for ever.
    """
    random = np.random.RandomState(seed % 2**32)
    result = {}
    for spec in specs:
        shape = tuple(_evaluate(dim, sizes) for dim in spec["shape"])
        dtype = np.dtype(spec["dtype"])
        span = [_evaluate(e, sizes) for e in spec.get("draw") or spec.get("bounds") or ()] or None
        values: Any
        if dtype.kind == "f":
            if span is None:
                values = random.standard_normal(shape)
            else:
                values = random.uniform(span[0], span[1], shape)
        elif span is not None and span[1] - span[0] > 1:
            values = random.randint(int(span[0]), min(int(span[1]), 2**62) + 1, shape, np.int64)
        else:
            values = np.full(shape, 1 if span is None else min(max(1, span[0]), span[1]))
        result[str(spec["name"])] = np.ascontiguousarray(values.astype(dtype))
    return result


def _evaluate(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, str):
        return sizes[value]
    if isinstance(value, dict):
        terms = value["terms"].items()
        return value["constant"] + sum(factor * sizes[axis] for axis, factor in terms)
    return value


def read_memory(process: object = "self") -> dict[str, int]:
    """Resident bytes of a process: ``anonymous`` is its own, ``file`` mapped files, which processes
    share, ``resident`` both together. Empty where there is no /proc."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as stream:
            fields = dict(line.split(":", 1) for line in stream)
    except OSError:
        return {}
    return {name: int(fields[field].split()[0]) * 1024 for name, field in _STREAMS.items()}


class _Worker:
    def __init__(self, open_session: Callable[[Mapping[str, Any]], Session]) -> None:
        self._open_session = open_session
        self._session: Any = None
        self._workload: Mapping[str, Any] = {}

    def open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        begun, memory = time.monotonic_ns(), read_memory()
        self._workload = request
        self._session = self._open_session(request["settings"])
        return {
            "facts": dict(self._session.facts),
            "memory": memory,
            "loaded": [name for name in _NOTABLE if name in sys.modules],
            "begun_ns": begun,
            "opened_ns": time.monotonic_ns(),
        }

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        run, clock = self._session.run, time.perf_counter_ns
        batches = [self._make(length, request["seed"]) for length in request["lengths"]]
        gc.collect()
        times = []
        for inputs in batches:
            begun = clock()
            run(inputs)
            times.append(clock() - begun)
        return {"ns": times, "done_ns": time.monotonic_ns()}

    def save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        arrays = {}
        for length in request["lengths"]:
            for name, value in self._session.run(self._make(length, request["seed"])).items():
                arrays[f"{length}.{name}"] = np.array(value)
        with open(request["path"], "xb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        return {"arrays": len(arrays)}

    def _make(self, length: int, seed: int) -> dict[str, Any]:
        axis = self._workload["length_axis"]
        sizes = {**self._workload["sizes"], **({} if axis is None else {axis: length})}
        return make_inputs(self._workload["specs"], sizes, seed + length)


def serve(open_session: Callable[[Mapping[str, Any]], Session]) -> None:
    """Answers requests until ``close``, or until the requests end.

    Args:
        open_session: loads the model; it is given the ``settings`` of the request ``open``.
    """
    # What libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = _Worker(open_session)
    operations = {"open": worker.open, "run": worker.run, "save": worker.save}
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "close":
            return
        try:
            answer = operations[request["op"]](request)
        except Exception as error:  # whatever a session raises is the driver's to report
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Bundle:
    """A bundle, run by the runtime inside it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import edgecompile
        from edgecompile.runtime import open_bundle

        if settings["torch"]:
            import edgecompile.torch_runtime  # torch runs this bundle: registers its loader
        model = open_bundle(
            settings["path"], threads=settings["threads"], variant=settings["variant"]
        )
        self.run = model.run
        self.facts: Mapping[str, Any] = {
            "version": edgecompile.__version__,
            "threads": model.info["threads"],
            "variant": model.info["variant"],
            "runtime": edgecompile.__file__,
        }


class Eager:
    """The model's own code, run by torch."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import torch

        from edgecompile.loaders.load import load_model
        from edgecompile.models.options import LoadOptions

        torch.set_num_threads(settings["threads"])
        load, batch = LoadOptions.from_json(settings["load"]), settings["batch"]
        model = load_model(settings["spec"], load, batch=None if batch is None else tuple(batch))
        self.module: Any = model.module
        self.facts: Mapping[str, Any] = {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
        }

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        from edgecompile.models.arrays import to_tensors

        # no_grad, not inference_mode: Inductor freezes weights under the former only.
        with torch.no_grad():
            outputs = self.module(**to_tensors(inputs))
        return {name: tensor.numpy() for name, tensor in outputs.items()}


if __name__ == "__main__":
    # Its modules would hide others of their names.
    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]
    serve(Eager if sys.argv[1] == "eager" else _Bundle)
