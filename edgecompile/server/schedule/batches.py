"""Runs of requests together, and their layout: joined along the batch axis, filled up along the length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.runtime import Model
from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.call.dispatch import axis_sizes
from edgecompile.runtime.call.inputs import CheckedInputs
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.format.sums import axes_of
from edgecompile.runtime.measure.serving import batch_axis
from edgecompile.server.journal import Journal, digest

#: What ``plan.server.rows`` says where no row of a batch changes with those beside it.
INDEPENDENT = "independent"

Arrays = Mapping[str, NDArray[Any]]
#: The outputs by name, or what the run of the model raised.
Result = dict[str, NDArray[Any]] | Exception


class Batches:
    """The batch and length axes of a bundle's inputs and outputs.

    Attributes:
        joins: whether requests can share a run at all: the builder found that no row changes with
            those beside it.
        mixes: whether requests of other lengths can: where the builder found that padding changes
            nothing.
        most_rows: the largest number of rows of a run.
    """

    def __init__(self, manifest: Manifest, plan: Mapping[str, Any] = MappingProxyType({})) -> None:
        """``plan``: ``plan.server`` of the manifest; see FORMAT.md."""
        self._inputs, self._outputs = manifest.inputs, manifest.outputs
        self._manifest = manifest
        self._length = manifest.length_axis
        try:
            self._rows: str | None = batch_axis(manifest)
        except InputError:
            self._rows = None
        self.most_rows = 1 if self._rows is None else manifest.axes[self._rows].hi
        shapes_known = all(None not in item.shape for item in manifest.outputs)
        others = set(manifest.axes) - {self._rows, self._length}
        # Of a third axis only equal sizes could share a run; who has one runs alone.
        # What compares rows with each other would compare one client's with another's.
        inner = [dim for item in self._inputs + self._outputs for dim in item.shape[1:]]
        apart = not any(self._rows in axes_of(dim, manifest.axes) for dim in inner)
        independent = plan.get("rows") == INDEPENDENT and manifest.generation is None
        self.joins = self.most_rows > 1 and shapes_known and apart and not others and independent
        fills = all(item.pad is not None for item in manifest.inputs if self._length in item.shape)
        # A size that follows from the length isn't filled up.
        tied = [axes_of(dim, manifest.axes) for dim in inner if dim != self._length]
        fills &= not any(self._length in axes for axes in tied)
        self.mixes = self.joins and plan.get("padding") in ("proven", "assumed") and fills

    def sizes(self, arrays: Arrays) -> dict[str, int]:
        """The size of every axis of a request."""
        return axis_sizes(self._manifest, {name: np.shape(x) for name, x in arrays.items()})

    def measure(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Rows and length; 1 where there is no such axis."""
        rows = sizes.get(self._rows, 1) if self._rows is not None else 1
        return rows, sizes.get(self._length, 1) if self._length is not None else 1

    def join(self, requests: Sequence[Arrays]) -> Arrays:
        """The inputs of one run: the requests' rows below each other, filled up to the longest."""
        result = {}
        for item in self._inputs:
            arrays = [request[item.name] for request in requests]
            shapes = {array.shape[1:] for array in arrays}
            if len(shapes) == 1:
                result[item.name] = np.concatenate(arrays)
                continue
            rows = sum(len(array) for array in arrays)
            shape = tuple(map(max, *shapes))
            whole = np.full((rows, *shape), item.pad, arrays[0].dtype)
            at = 0
            for array in arrays:
                place = (slice(at, at + len(array)), *(slice(n) for n in array.shape[1:]))
                whole[place] = array
                at += len(array)
            result[item.name] = whole
        return result

    def split(
        self, outputs: Arrays, measures: Sequence[tuple[int, int]]
    ) -> list[dict[str, NDArray[Any]]]:
        """Each request's part of the outputs, cut to its own rows and length.

        Args:
            outputs: the outputs of the run.
            measures: rows and length of each request, in the order in which they were joined.
        """
        result, at = [], 0
        for rows, length in measures:
            own = {}
            for item in self._outputs:
                cut = [slice(length) if dim == self._length else slice(None) for dim in item.shape]
                cut[0] = slice(at, at + rows)
                own[item.name] = outputs[item.name][tuple(cut)]
            result.append(own)
            at += rows
        return result


class Runner:
    """Runs requests together, on any thread."""

    def __init__(self, model: Model, layout: Batches, journal: Journal, cpus: int) -> None:
        """``cpus``: the threads that the model's runs have where they aren't told."""
        self._model, self._layout, self._journal, self._cpus = model, layout, journal, cpus

    def key(self, inputs: Arrays) -> bytes:
        """A request's name in the journal; nothing where that notes nothing."""
        return digest(self._model.manifest.name, inputs) if self._journal.notes else b""

    def run(self, requests: Sequence[CheckedInputs], threads: int) -> list[Result]:
        """Each request's outputs, or why it has none. Where a batch fails, each one runs alone, so
        that only the culprit fails; so it does where one of them may have killed a worker."""
        keys = [self.key(inputs) for inputs in requests]
        if len(requests) == 1:
            try:
                return [self._call(requests[0], keys, threads)]
            except Exception as error:
                return [error]
        suspects = self._journal.suspects()
        if not any(key in suspects for key in keys):
            try:
                outputs = self._call(self._layout.join(requests), keys, threads)
                measures = [self._layout.measure(inputs.sizes) for inputs in requests]
                return [*self._layout.split(outputs, measures)]
            except Exception:
                pass
        return [result for inputs in requests for result in self.run([inputs], threads)]

    def _call(self, inputs: Arrays, keys: Sequence[bytes], threads: int) -> dict[str, NDArray[Any]]:
        """One run of the model, of the requests with these keys."""
        with self._journal.running(keys, self._model):
            # Its own number of threads needs no telling, which costs two calls of native code.
            count = 0 if threads == self._cpus else threads
            outputs: dict[str, NDArray[Any]] = self._model.run(inputs, threads=count)
        if self._journal.suspects():
            for key in keys:
                self._journal.clear(key)
        return outputs
