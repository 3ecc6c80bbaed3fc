"""A stream of runs whose state goes from one to the next."""

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

import numpy as np

from ..base.errors import InputError
from ..base.lifetime import OneAtATime
from ..format.manifest.schema import StateSpec, TensorSpec
from ..open.bundle import OpenBundle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Dict[str, NDArray[Any]]


class StateStream(OneAtATime):
    """Runs of a model that keep its state; made by ``Model.stream``.

    A stream is one thread's at a time; a call from a second one is an InputError. A model may have any number
    of streams.
    """

    def __init__(self, model: OpenBundle) -> None:
        """Begins at the state's start."""
        manifest = model.manifest
        if not manifest.state:
            raise InputError(
                "{}: the model has no state to keep".format(manifest.name),
                'call run, or name the state where the bundle is built: a factory\'s "state"',
            )
        super().__init__("stream", "model.stream()")
        specs = {item.name: item for item in manifest.inputs}
        self._model = model
        self._names = {item.output: item.input for item in manifest.state}
        self._start = {item.input: make_start(item, specs[item.input]) for item in manifest.state}
        self._state: Arrays = self._start

    def run(self, inputs: Mapping[str, Any], *, threads: int = 0) -> "Arrays":
        """Runs the model once, with the state that the run before it left.

        Args:
            inputs: an array for every input but the state.
            threads: see ``Model.run``.

        Returns:
            A new array for every output but the state. After an error the state is what it was before.

        Raises:
            InputError: a state is among the inputs, or the stream is in use by another thread.
            EdgecompileError: see ``Model.run``.
        """
        with self._taken():
            given: Any = inputs
            if not isinstance(given, Mapping):
                return self._model.run(given)  # which refuses them
            for name in self._state:
                if name in inputs:
                    raise InputError(
                        "{}: is a state, which the stream keeps".format(name),
                        "leave it out, give it to reset, or run the model without a stream",
                    )
            outputs = self._model.run({**inputs, **self._state}, threads=threads)
            # No copy: the next run reads them where this one wrote them.
            self._state = {into: outputs.pop(name) for name, into in self._names.items()}
        return outputs

    __call__ = run

    @property
    def state(self) -> "Arrays":
        """A copy of the state, by the names of its inputs; ``reset`` takes it."""
        with self._taken():
            return {name: array.copy() for name, array in self._state.items()}

    def reset(self, state: Optional[Mapping[str, Any]] = None) -> None:
        """Begins again at the state's start, or goes on from a state.

        Args:
            state: an array for each input that is a state; they are copied, and checked by the next run.

        Raises:
            InputError: there is one too few or too many, or the stream is in use by another thread.
        """
        with self._taken():
            if state is None:
                self._state = self._start
                return
            if not isinstance(state, Mapping) or state.keys() != self._start.keys():
                text = "state must have an array for each of {} and nothing else"
                raise InputError(text.format(", ".join(self._start)))
            self._state = {name: np.array(state[name], order="C") for name in self._start}


def make_start(item: StateSpec, spec: TensorSpec) -> "NDArray[Any]":
    """The values of a state in the first run."""
    values = np.array(item.start or (0,), spec.dtype)
    shape: Any = spec.shape  # of fixed sizes
    if values.size == 1:
        return np.full(shape, values[0])
    return values.reshape(shape)
