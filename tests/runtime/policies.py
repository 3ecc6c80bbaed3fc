"""A manifest's ``policy`` for dummy bundles, hostile changes of it, and models that stand for open bundles."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.runtime.format.manifest.parse import parse_manifest
from tests.runtime.bundles import DELETE, DOCUMENT, DummyBundle
from tests.runtime.golden_files import write_case

Arrays = Mapping[str, npt.NDArray[Any]]
STATE, CAMERA = "observation.state", "observation.images.top"
POLICY: dict[str, Any] = {
    "observations": {
        STATE: {
            "input": "state",
            "scaling": {"offset": [1, 2, 3], "scale": [2, 4, 8], "shift": 1},
        },
        CAMERA: {
            "input": "camera",
            "scaling": {"offset": [0.5], "scale": [0.25, 0.5, 0.125], "shift": 0},
        },
    },
    "action": {"output": "action", "scaling": {"offset": [10, 20], "scale": [2, 0], "shift": 1}},
    "action_steps": 2,
    "steps": 2,
    "noise": "noise",
}
_SHAPES = {"state": [2, 3], "camera": [2, 3, 4, 5], "noise": [1, 4, 2]}


def float_tensor(name: str, sizes: list[int], batch: int | str = "batch") -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "shape": [batch, *sizes]}


def policy_document(
    shapes: Mapping[str, list[int]], chunk: list[int], policy: dict[str, Any]
) -> dict[str, Any]:
    """The manifest of a policy without its files: inputs of some shapes behind the batch, and a chunk's."""
    axes = [{"batch": {"lo": n, "hi": n, "hint": n}} for n in (1, 2)]
    return {
        **copy.deepcopy(DOCUMENT),
        "inputs": [
            {**float_tensor(name, sizes), "pad": None, "bounds": None}
            for name, sizes in shapes.items()
        ],
        "outputs": [float_tensor("action", chunk)],
        "axes": {"batch": {"lo": 1, "hi": 2}},
        "length_axis": None,
        "buckets": [{"mode": "exact", "axes": item} for item in axes],
        "policy": copy.deepcopy(policy),
    }


def add_policy(bundle: DummyBundle) -> None:
    """Makes the bundle one of a policy with two observations in a row, and noise."""
    bundle.document = policy_document(_SHAPES, [4, 2], POLICY)
    for bucket, batch in ((0, 1), (1, 2)):
        inputs = {name: np.zeros((batch, *sizes), np.float32) for name, sizes in _SHAPES.items()}
        outputs = {"action": np.zeros((batch, 4, 2), np.float32)}
        bundle.files[f"golden/{bucket}-hint.npz"] = write_case(inputs, outputs)


class StandIn:
    """Stands for an open bundle: ``run`` is a function of the inputs."""

    def __init__(self, document: dict[str, Any], run: Callable[[Arrays], Arrays]) -> None:
        names = ["weights.fp32", "code/x86-64/libecprobe.so"]
        names += [document["variants"][0]["runtime"], *document["variants"][0]["programs"]]
        files = {name: {"size": 1, "sha256": "0" * 64} for name in names}
        text = json.dumps({**document, "golden": [], "files": files})
        self.manifest = parse_manifest(text.encode())
        self.inputs: list[Arrays] = []
        self._run = run

    def run(self, inputs: Arrays, *, threads: int = 0) -> Arrays:
        self.inputs.append({name: array.copy() for name, array in inputs.items()})
        return self._run(inputs)


_IN = "policy.observations.observation~state"
#: rule, where, what, part of the message.
HOSTILE_POLICIES: list[tuple[str, str, Any, str]] = [
    ("key-type", "policy", [], "policy: must be an object, not list"),
    ("key-type", "policy", None, "policy: must be an object, not null"),
    ("key-type", "policy.observations", [], "policy.observations: must be an object"),
    ("key-type", f"{_IN}", "state", "must be an object"),
    ("key-type", f"{_IN}.scaling", [1], "must be an object"),
    ("key-type", f"{_IN}.scaling.offset", 1, "must be a list"),
    ("key-type", f"{_IN}.scaling.offset", ["1"], "must be a number"),
    ("key-type", "policy.steps", 2.0, "policy.steps: must be an integer"),
    ("key-type", "policy.noise", 1, "policy.noise: must be a string"),
    ("key-type", "policy.ensemble", "0.01", "policy.ensemble: must be a number"),
    ("key-missing", "policy.observations", DELETE, "policy.observations: is required"),
    ("key-missing", f"{_IN}.input", DELETE, "is required"),
    ("key-missing", f"{_IN}.scaling.shift", DELETE, "is required"),
    ("key-missing", "policy.action", DELETE, "policy.action: is required"),
    ("key-missing", "policy.action_steps", DELETE, "policy.action_steps: is required"),
    ("list-size", "policy.observations", {}, "has 0 entries"),
    ("list-size", f"{_IN}.scaling.scale", [], "has 0 entries"),
    ("list-size", f"{_IN}.scaling.scale", [1] * 4097, "has 4097 entries"),
    ("policy-observations", "policy.observations.", {"input": "state"}, "must be 1 to 200"),
    ("policy-observations", "policy.observations.a\x1b", {"input": "state"}, "must be 1 to 200"),
    ("policy-inputs", f"{_IN}.input", "states", "there is no 'states'"),
    ("policy-inputs", f"{_IN}.input", "camera", "there is no 'camera' that nothing else gives"),
    ("policy-inputs", f"{_IN}", DELETE, "nothing gives the input 'state'"),
    ("policy-inputs", "policy.noise", DELETE, "nothing gives the input 'noise'"),
    ("policy-inputs", "policy.noise", "state", "there is no 'state' that nothing else gives"),
    ("policy-inputs", "policy.steps", 3, "must have 3 observations in its second dimension"),
    ("policy-inputs", "inputs.0.dtype", "float64", "'state' must be float32 with fixed sizes"),
    ("policy-inputs", "inputs.2.dtype", "int64", "'noise' must be float32 with fixed"),
    ("policy-inputs", "inputs.0.shape", ["batch", 2], "'state' must be float32 with fixed"),
    ("policy-inputs", "inputs.2.shape", ["batch", "batch+1"], "'noise' must be float32 with"),
    ("policy-inputs", "inputs.0.shape", [1, 2, 3], "inputs must have one batch"),
    ("policy-inputs", "generation", {}, "a policy has no generation"),
    ("policy-inputs", "state", [], "a policy has no state"),
    ("policy-action", "policy.action.output", "actions", "there is no output 'actions'"),
    ("policy-action", "outputs.0.dtype", "float64", "'action' must be float32 [batch, actions"),
    ("policy-action", "outputs.0.shape", ["batch", 4], "'action' must be float32 [batch, actions"),
    ("policy-action", "outputs.0.shape", ["batch", None, 2], "must be float32 [batch, actions"),
    ("policy-action", "outputs.0.shape", [1, 4, 2], "with the inputs' batch"),
    ("policy-steps", "policy.steps", 0, "0 isn't within 1..256"),
    ("policy-steps", "policy.action_steps", 0, "0 isn't within 1..65536"),
    ("policy-steps", "policy.action_steps", 5, "a chunk has 4 actions, 5 can't be performed"),
    ("policy-steps", "policy.ensemble", 0.01, "must be 1 with an ensemble"),
    ("policy-numbers", "policy.ensemble", 1e39, "isn't a finite float32"),
    ("policy-numbers", f"{_IN}.scaling.offset", [1, 2], "has 2 numbers, must have 1 or 3"),
    ("policy-numbers", f"{_IN}.scaling.scale", [1, 0, 1], "an observation can't be divided by 0"),
    ("policy-numbers", f"{_IN}.scaling.shift", -1e39, "isn't a finite float32"),
    ("policy-numbers", "policy.action.scaling.scale", [1] * 3, "has 3 numbers, must have 1 or 2"),
]
