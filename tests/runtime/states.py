"""A manifest's ``state`` for dummy bundles, and hostile changes of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.runtime.bundles import DELETE, LENGTHS, DummyBundle, make_case
from tests.runtime.golden_files import write_case

HIDDEN: dict[str, Any] = {"name": "h", "dtype": "float32", "shape": [2, 3], "bounds": [-1, 1]}
COUNT: dict[str, Any] = {"name": "n", "dtype": "int64", "shape": [1]}
#: Of which zeros, the start without one, are no value.
FAR: dict[str, Any] = {**COUNT, "bounds": [1, 2]}


def add_state(bundle: DummyBundle) -> None:
    """Gives a bundle two inputs that are outputs of the run before, one with a start."""
    bundle.document["inputs"] += [dict(HIDDEN), dict(COUNT)]
    for item in (HIDDEN, COUNT):
        bundle.document["outputs"].append(
            {"name": f"{item['name']}_next", "dtype": item["dtype"], "shape": list(item["shape"])}
        )
    bundle.document["state"] = [
        {"output": "h_next", "input": "h", "start": [0, 0.5, -1, 1, 0, 0]},
        {"output": "n_next", "input": "n"},
    ]
    arrays = {"h": np.zeros((2, 3), np.float32), "n": np.zeros(1, np.int64)}
    for bucket, length in LENGTHS.items():
        inputs, outputs = make_case(length)
        outputs = {**outputs, **{f"{name}_next": array for name, array in arrays.items()}}
        bundle.files[f"golden/{bucket}-hint.npz"] = write_case({**inputs, **arrays}, outputs)


HOSTILE_STREAMS: list[tuple[str, str, Any, str]] = [
    ("key-type", "state", {}, "state: must be a list"),
    ("key-type", "state.0", "h", "state[0]: must be an object"),
    ("key-type", "state.0.start", 0.5, "state[0].start: must be a list"),
    ("key-type", "state.0.start", ["0"], "state[0].start[0]: must be a number"),
    ("key-missing", "state.0.output", DELETE, "state[0].output: is required"),
    ("key-missing", "state.1.input", DELETE, "state[1].input: is required"),
    ("list-size", "state", [], "state: has 0 entries, must have 1 to 64"),
    ("list-size", "state.0.start", [], "state[0].start: has 0 entries, must have 1 to 65536"),
    ("list-size", "state.0.start", [0] * 65537, "has 65537 entries"),
    ("state-tensors", "state.0.output", "h", "state[0].output: there is no 'h'"),
    ("state-tensors", "state.0.input", "h_next", "state[0].input: there is no 'h_next'"),
    ("state-tensors", "state.1", {"output": "n_next", "input": "h"}, "'h' occurs twice"),
    ("state-tensors", "state.1", {"output": "h_next", "input": "n"}, "'h_next' occurs twice"),
    ("state-tensors", "inputs.2.shape", [3, 2], "is float32 [2, 3], but 'h' is float32 [3, 2]"),
    ("state-tensors", "inputs.2.shape", [2, 3, 1], "but 'h' is float32 [2, 3, 1]"),
    ("state-tensors", "inputs.3.dtype", "int32", "is int64 [1], but 'n' is int32 [1]"),
    ("state-tensors", "inputs.2.shape", ["batch", 3], "the shape [batch, 3], a state has fixed"),
    ("state-tensors", "outputs.2.shape", [None, 3], "'h_next' has the shape [?, 3], a state has"),
    ("state-tensors", "generation", {}, "keeps its states as generation says"),
    ("state-start", "state.0.start", [0, 0], "has 2 values, must have 1 or 6"),
    ("state-start", "state.0.start", [1.5], "1.5 isn't a value of float32 within its bounds"),
    ("state-start", "state.1.start", [0.5], "0.5 isn't a value of int64 within its bounds"),
    ("state-start", "inputs.3", FAR, "0 isn't a value of int64 within its bounds"),
]
