"""The requests: open, run, save, facts, close."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import IO, Any, Protocol

_STARTED = time.monotonic_ns()

import numpy as np  # noqa: E402

from .facts import describe_process  # noqa: E402
from .inputs import make_inputs  # noqa: E402


class Session(Protocol):
    """A contender, loaded; each module beside this one has ``open_session(settings) -> Session``.

    ``facts`` holds plain values: versions, the number of threads it says it uses.
    """

    facts: Mapping[str, Any]

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """One call, numpy arrays in, numpy arrays out; the arrays live until the next call."""


class Worker:
    """Answers requests; one for each process."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._specs: list[dict[str, Any]] = []
        self._axis: str | None = None
        self._sizes: dict[str, int] = {}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Handles one request."""
        if request["op"] == "open":
            return self._open(request)
        if request["op"] == "run":
            return self._run(request["lengths"], request["seed"])
        if request["op"] == "save":
            return self._save(request["lengths"], request["seed"], request["path"])
        if request["op"] == "facts":
            return describe_process()
        raise ValueError("unknown request {!r}".format(request["op"]))

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Loads the contender ``kind`` with its ``settings`` for inputs of ``specs``.

        Times are of the clock that all processes share (monotonic, nanoseconds).
        """
        before = describe_process()
        begun = time.monotonic_ns()
        self._specs = request["specs"]
        self._axis = request["length_axis"]
        self._sizes = request["sizes"]
        module = importlib.import_module("." + request["kind"], __package__)
        self._session = module.open_session(request["settings"])
        return {
            "facts": dict(self._session.facts),
            "before": before,
            "started_ns": _STARTED,
            "begun_ns": begun,
            "opened_ns": time.monotonic_ns(),
        }

    def _run(self, lengths: list[int], seed: int) -> dict[str, Any]:
        """Runs the lengths in order; nanoseconds of each."""
        assert self._session is not None
        run = self._session.run
        batches = [self._make(length, seed) for length in lengths]
        gc.collect()
        clock = time.perf_counter_ns
        times = []
        for inputs in batches:
            begun = clock()
            run(inputs)
            times.append(clock() - begun)
        return {"ns": times, "done_ns": time.monotonic_ns()}

    def _save(self, lengths: list[int], seed: int, path: str) -> dict[str, Any]:
        """Writes the outputs for each length to an .npz, as ``<length>.<output>``."""
        assert self._session is not None
        arrays = {}
        for length in lengths:
            for name, value in self._session.run(self._make(length, seed)).items():
                arrays[f"{length}.{name}"] = np.array(value)
        with open(path, "xb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        return {"arrays": len(arrays)}

    def _make(self, length: int, seed: int) -> dict[str, Any]:
        sizes = dict(self._sizes)
        if self._axis is not None:
            sizes[self._axis] = length
        return make_inputs(self._specs, sizes, seed + length)


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answers until ``close`` or the end of the requests."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        if request["op"] == "close":
            return
        try:
            answer = worker.answer(request)
        except Exception as error:  # whatever a contender raises is the driver's to report
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> int:
    """Serves on the standard streams; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(sys.stdin, answers)
    except (BrokenPipeError, KeyboardInterrupt):
        return 1
    return 0
