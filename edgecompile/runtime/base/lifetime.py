"""The calls of a model that are under way, and the memory that is freed when the last one is over.

Nothing here takes a lock: a signal handler or a finalizer may close a model at any moment, also while
its own thread is in the middle of a call or of this very code. A call is an entry of a dict, under a
key of its own. Entries are made and removed in single steps that no interrupt can divide.
"""

from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock, get_ident
from typing import Any, Callable, Dict, Iterator, List, Optional, TypeVar

from .errors import CopyError, InputError, ModelClosedError

_T = TypeVar("_T")


class Lifetime:
    """Calls, and the end that waits for them. Every method may be called from any thread.

    Attributes:
        closed: whether new calls are refused.
    """

    def __init__(self, label: str, owned: List[Callable[[], None]]) -> None:
        """Takes over what is owned: functions that free a part each, the last one first.

        One that raises, or is interrupted, is called again by the next ``close``; one is lost where
        the interrupt comes between taking it off and calling it.
        """
        self._label = label
        self._owned = owned
        self._calls: Dict[object, int] = {}  # each call's thread
        # Safe in signal handlers, which threading's conditions and events aren't.
        self._left: SimpleQueue[None] = SimpleQueue()
        self._deferred = False
        self.closed = False

    def own(self, free: Callable[[], None]) -> None:
        """Adds what is freed first."""
        self._owned.append(free)

    def after_fork(self) -> None:
        """In a process after a fork, where the calls of other threads don't exist."""
        me = get_ident()
        self._calls = {key: thread for key, thread in list(self._calls.items()) if thread == me}
        self._left = SimpleQueue()

    def hold(self, work: Callable[..., _T], *arguments: Any, closed_too: bool = False) -> _T:
        """``work(*arguments)``, during which nothing is freed.

        Args:
            work: the function to call.
            arguments: its arguments.
            closed_too: do it after ``close`` too.

        Raises:
            ModelClosedError: it is closed, and not ``closed_too``.
        """
        key = object()
        # An interrupt may come within the inner ``finally``, before that has done anything: then the
        # outer one does it. To do it twice changes nothing.
        try:
            try:
                self._enter(key, closed_too)
                return work(*arguments)
            finally:
                self._leave(key)
        finally:
            self._leave(key)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block during which nothing is freed.

        Raises:
            ModelClosedError: it is closed.
        """
        key = object()
        try:
            try:
                self._enter(key, False)
                yield
            finally:
                self._leave(key)
        finally:
            self._leave(key)

    def _enter(self, key: object, closed_too: bool) -> None:
        self._calls[key] = get_ident()
        # ``close`` marks first and looks for calls afterwards, so one of the two sees the other.
        if self.closed and not closed_too:
            raise ModelClosedError("{}: the model is closed".format(self._label))

    def _leave(self, key: object) -> None:
        self._calls.pop(key, None)
        if self.closed:
            try:
                if self._deferred and self._owned and not self._calls:
                    self._calls[key] = get_ident()  # others wait for the freeing too
                    self._free()
            finally:
                self._calls.pop(key, None)
                self._left.put(None)

    def is_within(self) -> bool:
        """Whether this thread is in a call."""
        return get_ident() in list(self._calls.values())

    def close(self, wait: bool = True) -> None:
        """Refuses new calls, waits for those under way and frees what is owned.

        Called during a call of the same thread, by a signal handler for example, it can't wait: then
        the last call that leaves frees it. So it does without ``wait``. An interrupted ``close`` can be
        repeated.
        """
        self.closed = True
        if wait and not self.is_within():
            self._drain()
            self.hold(self._free, closed_too=True)
            self._drain()  # another thread may be freeing what it took off
        else:
            self._deferred = True
            self.hold(lambda: None, closed_too=True)  # frees, if no other call is under way

    def _drain(self) -> None:
        while self._calls:
            self._left.get()
        self._left.put(None)  # others may wait in ``close`` too

    def _free(self) -> None:
        failed: List[Callable[[], None]] = []
        error: Optional[BaseException] = None
        # Each is taken off before it is called, so it isn't called twice, whoever else comes here.
        while self._owned:
            try:
                free = self._owned.pop()
            except IndexError:  # another thread took the last one
                break
            try:
                free()
            except BaseException as raised:  # all the rest is freed first
                error = error or raised
                failed.append(free)
        self._owned.extend(failed)
        if error is not None:
            raise error


class Unique:
    """Forbids copying and pickling: a copy would free what the first one still uses."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises CopyError; ``copy`` and ``pickle`` come here."""
        raise CopyError(
            "a {} can't be copied or pickled: it holds native memory".format(type(self).__name__),
            "share the one object between threads; in another process open the bundle there",
        )


class OneAtATime(Unique):
    """What keeps values from call to call, so that two threads' calls would follow each other by chance."""

    def __init__(self, named: str, cure: str) -> None:
        """``named`` is its name in an error, ``cure`` the way to another one."""
        self._named, self._cure = named, cure
        self._turn = Lock()

    @contextmanager
    def _taken(self) -> Iterator[None]:
        """A call.

        Raises:
            InputError: another thread is in one.
        """
        if not self._turn.acquire(blocking=False):
            raise InputError(
                "the {} is in use by another thread".format(self._named),
                "make a {} for each: {}".format(self._named, self._cure),
            )
        try:
            yield
        finally:
            self._turn.release()
