"""A robot's policy: observations in, actions out, one for each step of an episode."""

from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, Mapping, Optional, Tuple

import numpy as np

from ..base.arguments import is_integer
from ..base.errors import InputError
from ..base.lifetime import OneAtATime
from ..format.manifest.policy_schema import Scaling
from ..open.bundle import OpenBundle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    #: The last observations by name, the oldest first.
    _Seen = Dict[str, Tuple[Array, ...]]

_FRAME = np.float32(255)


class Policy(OneAtATime):
    """Chooses actions for the observations of an episode; made by ``Model.policy``.

    A policy is one thread's at a time; a call from a second one is an InputError. A model may have any number of
    policies.
    """

    def __init__(self, model: OpenBundle, seed: Optional[int] = None) -> None:
        """Begins an episode; ``seed`` is that of the noise, None: another one each time."""
        super().__init__("policy", "model.policy()")
        manifest = model.manifest
        if manifest.policy is None:
            raise InputError(
                "{}: the model is no policy".format(manifest.name),
                "call run; build a policy from its folder, as LeRobot writes it",
            )
        if seed is not None and not is_integer(seed, 0, 2**32 - 1):
            raise InputError("`seed` is {!r}, must be an integer from 0 to 2^32 - 1".format(seed))
        self._model, self._spec = model, manifest.policy
        self._tensors = {item.name: item for item in manifest.inputs}
        output = next(item for item in manifest.outputs if item.name == self._spec.output)
        self._actions = int(output.shape[1] or 0)
        self._random = np.random.RandomState(seed)
        self._begin()

    def _begin(self) -> None:
        self._queue: Deque[Array] = deque()
        self._seen: _Seen = {}
        self._mean: Optional[Ensemble] = None
        if self._spec.ensemble is not None:
            self._mean = Ensemble(float(self._spec.ensemble), self._actions)

    def reset(self) -> None:
        """Begins another episode: forgets actions that weren't taken, and earlier observations.

        Raises:
            InputError: the policy is in use by another thread.
        """
        with self._taken():
            self._begin()

    def select_action(
        self, observation: Mapping[str, Any], *, noise: Any = None, threads: int = 0
    ) -> "Array":
        """The action of the next step. The model runs only where no action is left of its last chunk.

        Args:
            observation: Arrays by their names in ``manifest.policy``, in the robot's own units: of the shapes of the
                inputs without their first dimension, or with one for several robots. Images are float32
                [channels, height, width] from 0 to 1, or uint8 [height, width, channels] as cameras give them. The
                tokens of a task are integers. Further entries are ignored.
            noise: Array for a policy that begins with noise, of the shape of its input, in place of random numbers.
            threads: see ``Model.run``.

        Returns:
            A float32 array [size], in the robot's own units; with a first dimension where the observation has one.

        Raises:
            InputError: the observation lacks an array, one has another shape, or their numbers of robots
                differ; or the policy is in use by another thread.
            EdgecompileError: see ``Model.run``.
        """
        with self._taken():
            if self._queue and not self._spec.steps:
                return self._queue.popleft()
            seen, single = self._observe(observation)
            if not self._queue:
                chunk = self._predict(seen, noise, threads)
                chunk = (
                    chunk[:, : self._spec.action_steps]
                    if self._mean is None
                    else self._mean.add(chunk)
                )
                self._queue.extend(self._finish(chunk, single, axis=1))
            self._seen = seen
            return self._queue.popleft()

    def predict_chunk(
        self, observation: Mapping[str, Any], *, noise: Any = None, threads: int = 0
    ) -> "Array":
        """All actions that the model makes of an observation.

        Actions that wait stay as they are, and the observation isn't among those before the next one.

        Args:
            observation, noise, threads: see ``select_action``.

        Returns:
            A float32 array [actions, size]; with a first dimension where the observation has one.

        Raises:
            InputError, EdgecompileError: see ``select_action``.
        """
        with self._taken():
            seen, single = self._observe(observation)
            return self._finish(self._predict(seen, noise, threads), single)

    def _observe(self, observation: Mapping[str, Any]) -> "Tuple[_Seen, bool]":
        """The last normalized observations by name, this one behind them; whether it is of one robot alone.

        The first one of an episode stands for earlier ones, too.
        """
        given: Any = observation
        if not isinstance(given, Mapping):
            text = "an observation must be a dict of arrays, not {}"
            raise InputError(text.format(type(given).__name__))
        arrays: Dict[str, Array] = {}
        counts = set()
        for name, item in self._spec.observations.items():
            if name not in observation:
                known = ", ".join(self._spec.observations)
                raise InputError("the observation has no {!r}".format(name), "give " + known)
            tensor = self._tensors[item.input]
            dims = tensor.shape[2 if self._spec.steps else 1 :]
            array, single = _read(name, observation[name], dims, tensor.dtype)
            counts.add((single, len(array)))
            arrays[name] = normalize(array, item.scaling)
        if len(counts) > 1:
            raise InputError("the observation's arrays are of different numbers of robots")
        seen: _Seen = {}
        for name, array in arrays.items():
            before = self._seen.get(name, (array,) * max(self._spec.steps, 1))
            if len(before[-1]) != len(array) and (self._spec.steps or self._mean is not None):
                text = "the observation is of {} robots, that of the step before of {}"
                raise InputError(
                    text.format(len(array), len(before[-1])), "call reset before another episode"
                )
            seen[name] = (*before[1:], array)
        return seen, single

    def _predict(self, seen: "_Seen", noise: Any, threads: int) -> "Array":
        """The normalized actions [robots, actions, size] of the last observations."""
        inputs: Dict[str, Any] = {
            item.input: np.stack(seen[name], 1) if self._spec.steps else seen[name][-1]
            for name, item in self._spec.observations.items()
        }
        if self._spec.noise is not None:
            robots = len(next(iter(inputs.values())))
            shape: Any = (robots, *self._tensors[self._spec.noise].shape[1:])
            drawn = self._random.standard_normal(shape) if noise is None else noise
            inputs[self._spec.noise] = np.asarray(drawn, np.float32)
        elif noise is not None:
            raise InputError("`noise` is for policies that begin with noise, as this one doesn't")
        return self._model.run(inputs, threads=threads)[self._spec.output]

    def _finish(self, actions: "Array", single: bool, axis: int = 0) -> "Array":
        """Actions in the robot's own units; ``axis`` comes first where there are several robots."""
        actions = restore(actions, self._spec.scaling)
        return actions[0] if single else np.moveaxis(actions, axis, 0)


class Ensemble:
    """The mean of all chunks for each step that lies ahead; older chunks weigh exp(-coefficient * i) as much."""

    def __init__(self, coefficient: float, actions: int) -> None:
        """``actions`` is the number of a chunk."""
        steps = np.arange(actions, dtype=np.float32)
        self._weights = np.exp(-np.float32(coefficient) * steps)[:, None]
        self._sums = np.cumsum(self._weights, axis=0, dtype=np.float32)
        self._mean: Optional[Array] = None
        # The number of chunks in each mean but the first, which the last call gave away.
        self._counts = np.ones(actions - 1, np.int64)

    def add(self, chunk: "Array") -> "Array":
        """The mean [robots, 1, size] for this step, with a chunk [robots, actions, size] that begins at it."""
        if self._mean is None:
            mean = chunk
        else:
            counts = self._counts
            mean = self._mean * self._sums[counts - 1] + chunk[:, :-1] * self._weights[counts]
            mean = np.concatenate([mean / self._sums[counts], chunk[:, -1:]], axis=1)
            self._counts = np.append(counts + 1, 1)[1:]
        self._mean = mean[:, 1:]
        return mean[:, :1]


def normalize(array: "Array", scaling: Optional[Scaling]) -> "Array":
    """An observation [robots, …] as the model takes it; changed in place."""
    if scaling is not None:
        dims = (-1,) + (1,) * (array.ndim - 2)
        array -= np.array(scaling.offset, np.float32).reshape(dims)
        array /= np.array(scaling.scale, np.float32).reshape(dims)
        array -= np.float32(scaling.shift)
    return array


def restore(actions: "Array", scaling: Optional[Scaling]) -> "Array":
    """Actions […, size] in the robot's own units."""
    if scaling is None:
        return actions
    offset, scale = (np.array(item, np.float32) for item in scaling[:2])
    return (actions + np.float32(scaling.shift)) * scale + offset


def _read(name: str, value: Any, dims: Tuple[Any, ...], dtype: str) -> "Tuple[Array, bool]":
    """A new array [robots, *dims] of a dtype, and whether the first dimension was missing.

    Raises:
        InputError: it is no array of numbers, isn't of whole ones where the model takes these, or is of another shape.
    """
    array, floats = np.asarray(value), dtype == "float32"
    frame = floats and array.dtype == np.uint8 and len(dims) == 3
    wanted = (*dims[1:], dims[0]) if frame else dims
    rank, single = len(wanted), array.ndim == len(wanted)
    fits = single or (array.ndim == rank + 1 and len(array) > 0)
    kinds = "fiub" if floats else "iub"
    if array.dtype.kind not in kinds or not fits or array.shape[-rank:] != wanted:
        shape = ", ".join(str(dim) for dim in wanted)
        raise InputError(
            "{!r} is {} {}, must be {}numbers of the shape [{}], or [robots, {}]".format(
                name, array.dtype, list(array.shape), "" if floats else "whole ", shape, shape
            )
        )
    array = array[None] if single else array
    if not frame:
        return array.astype(dtype, order="C"), single
    array = np.moveaxis(array, -1, 1).astype(np.float32, order="C")
    array /= _FRAME
    return array, single
