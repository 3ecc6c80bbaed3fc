"""A record of running requests that outlives the worker; those that killed two are refused a while.

The supervisor makes a file in memory for each worker. The worker notes there what runs; if it dies, or what
runs breaks its GPU, the supervisor reads what that was, and writes to all workers' files which requests are suspects.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgecompile.server.errors import NotReady, Quarantined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgecompile.runtime import Model

#: A request that ran in so many workers when they died is refused.
MOST_DEATHS = 2
#: Seconds after the last death for which a request is a suspect.
HOLD_S = 600.0
_SLOTS, _MOST_SUSPECTS, _DIGEST = 1024, 256, 16
_HEAD = struct.Struct("=II")  # a number that every change makes another one; how many suspects
_ENTRY = struct.Struct("=16sB")  # a suspect and its deaths
_RUNNING = _HEAD.size + _MOST_SUSPECTS * _ENTRY.size
_SIZE = _RUNNING + _SLOTS * _DIGEST
_FREE = bytes(_DIGEST)


def digest(model: str, inputs: Mapping[str, NDArray[Any]]) -> bytes:
    """Identifies a request by the model's name and all of the inputs, in their order."""
    hasher = hashlib.blake2b(model.encode(), digest_size=_DIGEST)
    for name, array in inputs.items():
        # The dtype's code: numpy makes up its name each time, in a dozen calls of Python.
        hasher.update(f"\0{name}\0{array.dtype.char}\0{array.shape}\0".encode())
        hasher.update(array.data if array.flags.c_contiguous else array.tobytes())
    return hasher.digest()


class Journal:
    """A worker's side. Without a file it notes nothing, and refuses nothing."""

    def __init__(self, file: int | None = None, survived: Callable[[bytes], object] = id) -> None:
        """``file``: a descriptor of ``Suspects.new_file``; ``survived`` is called with suspects that ran well."""
        self._map = None if file is None else mmap.mmap(file, _SIZE)
        self._free = deque(range(_SLOTS))
        self._survived = survived
        self._head = b""
        self._deaths: dict[bytes, int] = {}

    @property
    def notes(self) -> bool:
        """Whether it notes anything."""
        return self._map is not None

    def suspects(self) -> Mapping[bytes, int]:
        """The number of workers that died with each; nearly always empty."""
        if self._map is not None and self._map[: _HEAD.size] != self._head:
            self._head = self._map[: _HEAD.size]
            count = _HEAD.unpack(self._head)[1]
            entries = self._map[_HEAD.size : _HEAD.size + count * _ENTRY.size]
            self._deaths = dict(_ENTRY.iter_unpack(entries))
        return self._deaths

    def check(self, key: bytes) -> None:
        """Raises Quarantined for a request that ran in ``MOST_DEATHS`` workers when they died."""
        deaths = self.suspects().get(key, 0)
        if deaths >= MOST_DEATHS:
            raise Quarantined(
                f"{deaths} processes died while they ran this very request: it is refused for up to "
                f"{HOLD_S / 60:.0f} minutes"
            )

    def running(self, keys: Sequence[bytes], model: Model) -> _Noted:
        """These requests run on ``model`` as long as the context lasts. For any thread.

        Raises:
            NotReady: nothing runs there any more.
        """
        if model.broken is not None:
            raise NotReady(model.broken, 1.0)
        return _Noted(self, keys, model)

    def clear(self, key: bytes) -> None:
        """The request ran well: it is no suspect any more."""
        if self.suspects().get(key, MOST_DEATHS) < MOST_DEATHS:
            self._deaths.pop(key)
            self._survived(key)

    def _begin(self, keys: Sequence[bytes]) -> list[int]:
        slots: list[int] = []
        if self._map is not None:
            for key in keys:
                if self._free:
                    slots.append(slot := self._free.popleft())
                    self._write(slot, key)
        return slots

    def _end(self, held: Sequence[int]) -> None:
        for slot in held:
            self._write(slot, _FREE)
            self._free.append(slot)

    def _write(self, slot: int, key: bytes) -> None:
        assert self._map is not None
        at = _RUNNING + slot * _DIGEST
        self._map[at : at + _DIGEST] = key


class _Noted:
    """The context of what runs. It stays noted where it is never left, as its thread has gone, and where
    the run broke the model: this worker has to end."""

    __slots__ = ("_held", "_journal", "_keys", "_model")

    def __init__(self, journal: Journal, keys: Sequence[bytes], model: Model) -> None:
        self._journal, self._keys, self._model = journal, keys, model

    def __enter__(self) -> None:
        self._held = self._journal._begin(self._keys)

    def __exit__(self, *failure: object) -> None:
        if self._model.broken is None:
            self._journal._end(self._held)


class Suspects:
    """The supervisor's side: the requests that ran in workers when they died."""

    def __init__(self) -> None:
        self._deaths: dict[bytes, tuple[int, float]] = {}
        self._version = 0

    def new_file(self) -> int:
        """A descriptor for one worker; close it once the worker is gone."""
        file = os.memfd_create("edgecompile-journal")
        os.ftruncate(file, _SIZE)
        self.write(file)
        return file

    def add(self, file: int, now: float) -> int:
        """A worker died: what ran in it is suspected. Gives how many of these are refused now."""
        noted = os.pread(file, _SLOTS * _DIGEST, _RUNNING)
        keys = {noted[at : at + _DIGEST] for at in range(0, len(noted), _DIGEST)} - {_FREE}
        for key in keys:
            self._deaths[key] = (min(self._deaths.pop(key, (0, now))[0] + 1, 255), now)
        while len(self._deaths) > _MOST_SUSPECTS:
            del self._deaths[next(iter(self._deaths))]
        return sum(self._deaths[key][0] >= MOST_DEATHS for key in keys if key in self._deaths)

    def clear(self, key: bytes) -> None:
        """It ran well."""
        self._deaths.pop(key, None)

    def expire(self, now: float) -> bool:
        """Forgets what was suspected long enough; whether there was any."""
        old = [key for key, (_, at) in self._deaths.items() if now - at > HOLD_S]
        for key in old:
            del self._deaths[key]
        return bool(old)

    def write(self, *files: int) -> None:
        """Tells workers by their files."""
        self._version += 1
        entries = [_ENTRY.pack(key, deaths) for key, (deaths, _) in self._deaths.items()]
        for file in files:
            os.pwrite(file, b"".join(entries), _HEAD.size)
            os.pwrite(file, _HEAD.pack(self._version, len(entries)), 0)
