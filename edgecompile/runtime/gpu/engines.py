"""An engine and its contexts on a GPU, as the rest of the runtime sees them.

``tensorrt.py`` has TensorRT's. Anything else that queues its work on a given stream, reads and writes given addresses and
allocates nothing while it does so can be driven the same way.
"""

from typing import Dict, Mapping, Protocol, Sequence, Tuple

Sizes = Tuple[int, ...]

#: How a GPU runs: as the buckets were planned, or one of two ways that users of PyTorch know by
#: these names; see ``programs.py``.
PLANNED, DEFAULT, REDUCE_OVERHEAD = "planned", "default", "reduce-overhead"
MODES = (PLANNED, DEFAULT, REDUCE_OVERHEAD)


class Context(Protocol):
    """One profile of an engine made ready to run: not from two threads at once."""

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The dtypes of inputs and outputs, which may differ from the manifest's: int32 for int64."""
        ...

    def reshape(self, shapes: Mapping[str, Sizes]) -> Dict[str, Sizes]:
        """Sets the shape of every input, and returns that of every output.

        Shapes lie within the profile. Nothing of an earlier run may be under way.

        Raises:
            GpuError: the engine refuses a shape, or can't tell an output's before it runs.
        """
        ...

    def bind(self, addresses: Mapping[str, int]) -> None:
        """Sets where every input is read and every output written, by addresses of the GPU.

        Each is a multiple of 256 and has room for the tensor's shape, row-major.

        Raises:
            GpuError: the engine refuses an address.
        """
        ...

    def enqueue(self, stream: int) -> None:
        """Queues one run on a stream and doesn't wait.

        A stream that is captured records the run instead: after one run of the same shapes and
        addresses, this neither allocates memory nor waits for anything.

        Raises:
            GpuError: the engine refuses to run.
        """
        ...

    def close(self) -> None:
        """Gives back what the context holds; no run may be under way. A second call does nothing."""
        ...


class Engine(Protocol):
    """A compiled model with one or several profiles, each a range of input shapes."""

    @property
    def label(self) -> str:
        """Its name in messages, such as a path."""
        ...

    @property
    def profiles(self) -> int:
        """The number of profiles."""
        ...

    def scratch_bytes(self, profile: int) -> int:
        """Bytes of the GPU's memory that a run in a profile needs beside inputs and outputs."""
        ...

    def open(self, profile: int, scratch: int, size: int, stream: int) -> Context:
        """A context of a profile.

        Args:
            profile: its number.
            scratch: the address of memory that other contexts use too, but never at the same time.
            size: its bytes, at least ``scratch_bytes(profile)``.
            stream: an idle one, for what has to be done on the GPU; it is idle again afterwards.

        Raises:
            GpuError: that failed.
        """
        ...

    def close(self) -> None:
        """Gives the engine back, after its contexts. A second call does nothing."""
        ...

    def abandon(self) -> None:
        """In a process after a fork: sees to it that nothing of this is ever given back there.

        The GPU's driver is gone there, and whatever asked it for something might end the process.
        """
        ...


class JoinedEngine:
    """Engines of several graphs as one: their profiles are numbered through."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        """Takes over ``engines``."""
        self._engines = tuple(engines)
        self.label = engines[0].label
        self.profiles = sum(engine.profiles for engine in engines)

    def _find(self, profile: int) -> Tuple[Engine, int]:
        """The engine that has a profile, and the profile's number there."""
        for engine in self._engines:
            if profile < engine.profiles:
                return engine, profile
            profile -= engine.profiles
        raise IndexError(profile)

    def scratch_bytes(self, profile: int) -> int:
        """See ``Engine.scratch_bytes``."""
        engine, own = self._find(profile)
        return engine.scratch_bytes(own)

    def open(self, profile: int, scratch: int, size: int, stream: int) -> Context:
        """See ``Engine.open``."""
        engine, own = self._find(profile)
        return engine.open(own, scratch, size, stream)

    def close(self) -> None:
        """See ``Engine.close``."""
        for engine in self._engines:
            engine.close()

    def abandon(self) -> None:
        """See ``Engine.abandon``."""
        for engine in self._engines:
            engine.abandon()
