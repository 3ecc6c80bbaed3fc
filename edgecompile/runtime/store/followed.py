"""A model that is called while its versions change: the bundle at a path, or the current one of a store."""

import functools
import logging
import os
import sys
import threading
import weakref
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple, Type

from ..base.errors import InputError, ModelClosedError, StoreError
from ..base.lifetime import Lifetime, Unique
from ..format.document import shorten
from ..format.files.hashes import bundle_state
from ..model.model import Model
from ..model.open_bundle import open_bundle
from ..model.proof import prove as prove_model
from ..stats.file import check_schedule
from .interface import check_interface
from .signals import listen, unlisten
from .store import LINK, VERSIONS

if TYPE_CHECKING:
    from ..format.output import Path

#: In the name of a statistics file: the number of versions that served before.
SWAP = "{swap}"
#: The most looks between two attempts to open a version that was refused.
_PAUSE = 64
#: Seconds for which a thread that opens a version keeps the interpreter from one that answers.
_SHARE = 0.0005
_log = logging.getLogger("edgecompile.runtime")


class _Version(NamedTuple):
    """An open version, its calls under way, and the state of the manifest that it was opened by."""

    model: Model
    life: Lifetime
    state: Optional[Tuple[int, ...]]


def follow(
    path: "Path",
    *,
    signal_number: Optional[int] = None,
    watch: Optional[float] = None,
    prove: bool = True,
    stats_file: "Optional[Path]" = None,
    stats_every: float = 60.0,
    **options: Any,
) -> "FollowedModel":
    """Opens a bundle, and each new version of it while the program goes on.

    Args:
        path: the bundle's folder or a link to it, or a model's folder in a store.
        signal_number: the signal at which a thread looks for a new version, such as ``signal.SIGHUP``; only
            in the main thread.
        watch: seconds after which a thread looks for a new version, again and again. None: never.
        prove: whether a version must reproduce its golden vectors before it serves.
        stats_file, stats_every: as in ``open_bundle``; the name holds ``{swap}``, the number of versions that
            served before, as each version counts its own calls.
        options: further arguments of ``open_bundle``, for every version.

    Raises:
        InputError: an argument is out of its range.
        StoreError: the store has no version.
        SelftestError: the version doesn't reproduce its golden vectors.
        EdgecompileError: see ``open_bundle``.
    """
    number = isinstance(watch, (int, float)) and not isinstance(watch, bool)
    if watch is not None and not (number and 0 < watch < threading.TIMEOUT_MAX):
        raise InputError("watch is {!r}, must be seconds, more than 0".format(watch))
    try:
        given = os.path.abspath(os.fsdecode(path))
    except TypeError:
        text = "path is {!r}, must be the path of a bundle, or of a model in a store"
        raise InputError(text.format(path)) from None
    stats = None
    if stats_file is not None:
        if SWAP not in str(stats_file):
            hint = "each version writes its own file: name it stats-{pid}-{swap}.json, for example"
            raise InputError("stats_file {}: has no {}".format(stats_file, SWAP), hint)
        check_schedule(stats_file, stats_every, given)
        stats = os.fspath(stats_file), stats_every
    return FollowedModel(given, prove, stats, options, signal_number, watch)


def _forward(name: str) -> Callable[..., Any]:
    """The method of ``Model``, of the version that serves."""

    @functools.wraps(getattr(Model, name))
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.use() as model:
            return getattr(model, name)(*arguments, **options)

    return call


class FollowedModel(Unique):
    """The calls of a model, made with its newest version; made by ``follow``.

    Every method may be called from any thread, but none from a signal handler.

    Attributes:
        swaps: number of new versions so far.
        error: the reason why the last new version was refused; None: it serves.
    """

    def __init__(
        self,
        path: str,
        prove: bool,
        stats: Optional[Tuple[str, float]],
        options: Dict[str, Any],
        signal_number: Optional[int],
        watch: Optional[float],
    ) -> None:
        """See ``follow``; ``stats`` are the name of the file and the seconds."""
        self._path, self._prove, self._stats, self._options = path, prove, stats, options
        self._watch = watch
        self._turn = threading.Lock()
        self._closed = False
        self._old: weakref.WeakSet[Lifetime] = weakref.WeakSet()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self.swaps = 0
        self.error: Optional[str] = None
        # Before it opens: a signal that comes meanwhile must not end the process.
        if signal_number is not None:
            listen(signal_number, self._tell)
        try:
            self._version = self._open(None)
            if signal_number is not None or watch is not None:
                self._start()
        except BaseException:
            unlisten(self._tell)
            raise
        _followed.add(self)

    def __repr__(self) -> str:
        return "<FollowedModel {} {!r}>".format(self._path, self._version.model)

    @contextmanager
    def use(self) -> Iterator[Model]:
        """A block in which one version stays open, as streams, sessions and policies need it.

        Raises:
            ModelClosedError: it is closed.
        """
        with ExitStack() as stack:
            while True:
                version = self._version
                try:
                    stack.enter_context(version.life.held())
                    break
                except ModelClosedError:
                    if version is self._version:
                        raise
            yield version.model

    # Calls that end with their answer; others, such as ``stream``, need ``use``.
    run = _forward("run")
    encode_texts = _forward("encode_texts")
    generate = _forward("generate")
    complete = _forward("complete")
    chat = _forward("chat")
    transcribe = _forward("transcribe")

    def refresh(self) -> bool:
        """Opens the version that is at the path now, and lets it serve if it is a new one.

        The version before closes with the last of its calls.

        Returns:
            Whether it is a new one. Of two calls at a time, the second one finds what the first one opened.

        Raises:
            BundleError: the new version takes or gives something else than the old one.
            EdgecompileError: it can't be opened, or proved; see ``follow``. The old version serves on.
            ModelClosedError: it is closed.
        """
        with self._turn:
            if self._closed:
                raise ModelClosedError("{}: the model is closed".format(self._path))
            old = self._version
            try:
                with _short_turns():
                    new = self._open(old)
            except Exception as error:
                self.error = shorten(error, 4000)
                raise
            self.error = None
            if new is old:
                return False
            self._version = new
            self.swaps += 1
            self._old.add(old.life)
        old.life.close(wait=False)
        return True

    def _open(self, old: Optional[_Version]) -> _Version:
        path = _find(self._path)
        # Read before the version is opened: what replaces it meanwhile is seen the next time.
        state = bundle_state(path)
        if old is not None and state is not None and state == old.state:
            return old
        model = open_bundle(path, **self._options)
        try:
            if old is not None:
                check_interface(old.model.manifest, model.manifest, path)
            if self._prove:
                prove_model(model)
                model.reset_stats()
            if self._stats is not None:
                name, every = self._stats
                number = self.swaps + (old is not None)
                model.schedule_stats(name.replace(SWAP, str(number)), every)
        except BaseException:
            model.close()
            raise
        return _Version(model, Lifetime(model.path, [functools.partial(_close, model)]), state)

    def _tell(self) -> None:
        self._wake.put(True)  # one step, whatever the signal interrupts

    def _start(self) -> None:
        name = "edgecompile-follow"
        self._thread = threading.Thread(target=self._attend, name=name, daemon=True)
        self._thread.start()

    def _attend(self) -> None:
        """Looks for new versions, in a thread of its own.

        What was refused may become whole, so it is tried again: after 1, 2, 4 and at last 64 further looks.
        """
        refused, pause, left = None, 1, 0
        while True:
            told = False
            try:
                told = self._wake.get(timeout=self._watch)
                if not told:
                    return
            except Empty:
                left -= 1
            state = self._look()
            served = None if self.error else self._version.state
            if not told and (state in (None, served) or (state == refused and left > 0)):
                continue
            try:
                if self.refresh():
                    _log.info("%s serves now", self._version.model.path)
                refused = None
            except Exception as error:
                if self._closed:
                    return
                _log.warning("the old version serves on: %s", error)
                pause = min(2 * pause, _PAUSE) if state == refused else 1
                refused, left = state, pause

    def _look(self) -> Optional[Tuple[int, ...]]:
        try:
            return bundle_state(_find(self._path))
        except StoreError:
            return None

    def close(self) -> None:
        """Refuses further calls, waits for those under way, and closes the model.

        Within a block of ``use`` it doesn't wait: then each version closes with the last of its calls.
        """
        with self._turn:
            self._closed = True
        self._wake.put(False)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        unlisten(self._tell)
        lives = [self._version.life, *self._old]
        # Two threads that wait for each other's blocks would wait for ever.
        wait = not any(life.is_within() for life in lives)
        for life in lives:
            life.close(wait)

    def _after_fork(self) -> None:
        """In a process after a fork, where no other thread opens a version, or makes a call."""
        self._turn, self._wake = threading.Lock(), SimpleQueue()
        for life in [self._version.life, *self._old]:
            life.after_fork()
        if self._thread is not None and not self._closed:
            self._start()

    def __enter__(self) -> "FollowedModel":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The folder of the version that serves."""
        return self._version.model.path

    @property
    def info(self) -> Dict[str, Any]:
        """``Model.info`` of the version that serves."""
        return self._version.model.info

    @property
    def stats(self) -> Dict[str, Any]:
        """``Model.stats`` of the version that serves."""
        return self._version.model.stats


@contextmanager
def _short_turns() -> Iterator[None]:
    """A block of work in Python beside which other threads wait less for the interpreter; 5 ms is its default.

    The interval is the process's: it is set back unless the program set another one meanwhile.
    """
    usual = sys.getswitchinterval()
    if usual > _SHARE:
        sys.setswitchinterval(_SHARE)
    shared = sys.getswitchinterval()
    try:
        yield
    finally:
        if usual > _SHARE and sys.getswitchinterval() == shared:
            sys.setswitchinterval(usual)


def _find(path: str) -> str:
    """The bundle's folder, without links.

    Raises:
        StoreError: it is a store without a version.
    """
    if os.path.isdir(os.path.join(path, VERSIONS)):
        path = os.path.join(path, LINK)
        if not os.path.lexists(path):
            hint = "python -m edgecompile.runtime install BUNDLE"
            raise StoreError("{}: no version is installed".format(os.path.dirname(path)), hint)
    return os.path.realpath(path)


def _close(model: Model) -> None:
    """Raises nothing: an answer mustn't be lost because its call was the last one of a version."""
    try:
        model.close()
    except Exception as error:
        _log.warning("%s: %s", model.path, error)


_followed: "weakref.WeakSet[FollowedModel]" = weakref.WeakSet()


def _after_fork() -> None:
    for model in list(_followed):
        model._after_fork()


os.register_at_fork(after_in_child=_after_fork)
