"""The folder of a model on a device: its versions, the link to the one that is served, and the state.

    versions/<id>   whole bundles that were verified and tested
    current         the link that programs open
    state.json      what counts; the link follows it
    lock, installing  who changes the state; who changes the versions

A version is on the disk before the state names it, and the state before the link follows. So whatever moment the power
fails at, link and state name whole versions.
"""

import contextlib
import fcntl
import os
import stat
from typing import Callable, ContextManager, Dict, Iterator, Optional

from ..base.errors import BundleError, StoreError
from ..format.document import Field, Problems, shorten
from ..format.output import write_output
from ..format.trust.policy import OWNER_HINT, describe_owner
from .disk import make_folder, point
from .state import MAX_STATE_BYTES, State, format_state, parse_state

Say = Callable[[str], None]
#: The link to open, and the folder of the versions.
LINK, VERSIONS = "current", "versions"
_STATE = "state.json"


class Store:
    """A model's part of a store."""

    def __init__(self, root: str, model: str) -> None:
        """Raises StoreError where ``model`` isn't a name."""
        if not Field(Problems("model"), model).name():
            raise StoreError("{!r} isn't the name of a model [store-model]".format(shorten(model)))
        self.model = model
        self.path = os.path.join(os.path.abspath(root), model)
        self.versions = os.path.join(self.path, VERSIONS)

    def make(self) -> None:
        """Makes the folders that don't exist.

        Raises:
            StoreError: one is somebody else's, or can't be made.
        """
        root = os.path.dirname(self.path)
        with _refusing(self.path):
            for path in (root, self.path, self.versions):
                make_folder(path)
        self.check()

    def check(self) -> None:
        """Checks that nobody else may change the folders.

        Raises:
            StoreError: somebody may, or there is none.
        """
        with _refusing(self.path):
            # The store itself may be reached through a link.
            _check_folder(os.path.dirname(self.path), follow=True)
            for path in (self.path, self.versions):
                _check_folder(path, follow=False)

    def place(self, version: str) -> str:
        """The folder of a version."""
        return os.path.join(self.versions, version)

    def locked(self, name: str = "lock", say: Say = lambda text: None) -> ContextManager[None]:
        """Holds a lock, waiting for it."""
        return holding(os.path.join(self.path, name), say)

    def read(self) -> State:
        """The state; before the first installation an empty one.

        Raises:
            StoreError: it can't be read.
        """
        path = os.path.join(self.path, _STATE)
        if not os.path.lexists(path):
            return State()
        with _refusing(path), open(path, "rb") as file:
            data = file.read(MAX_STATE_BYTES + 1)
        try:
            return parse_state(data, path)
        except BundleError as error:
            raise StoreError(error.message) from None

    def write(self, state: State) -> None:
        """Replaces the state, then lets the link follow it."""
        data = format_state(state)
        if len(data) > MAX_STATE_BYTES:
            raise StoreError("{}: has more than {} bytes".format(self.path, MAX_STATE_BYTES))
        write_output(os.path.join(self.path, _STATE), data, durable=True)
        self.settle(state)

    def settle(self, state: State) -> None:
        """Points the link to the version that the state names."""
        if state.current is not None:
            point(os.path.join(self.path, LINK), os.path.join(VERSIONS, state.current))

    def change(self, step: Callable[[State], State]) -> State:
        """Changes the state; the new one is on the disk when this returns.

        Raises:
            StoreError, RefusedReleaseError: there is no store, or ``step`` refuses.
        """
        self.check()
        with self.locked():
            old = self.read()
            try:
                new = step(old)
            except StoreError as error:
                raise StoreError("{}: {}".format(self.path, error.message), error.hint) from None
            if new != old:
                self.write(new)
            else:
                self.settle(new)
        return new

    def describe(self, state: Optional[State] = None) -> Dict[str, object]:
        """The state, the model's name, and the path of the version that is served, as plain JSON values."""
        if state is None:
            self.check()
            state = self.read()
        path = None if state.current is None else self.place(state.current)
        return {"model": self.model, "store": self.path, "path": path, **state.to_json()}


def start(store: Store) -> Dict[str, object]:
    """Counts a start of the service, and takes a version back whose trial is used up.

    Returns:
        See ``Store.describe``; "path" is the version to serve.

    Raises:
        StoreError: none is installed.
    """

    def step(state: State) -> State:
        assert state.running
        return state.started()

    return store.describe(store.change(step))


def confirm(store: Store) -> Dict[str, object]:
    """Ends the trial of a version that was found good; see ``State.confirmed``."""
    return store.describe(store.change(State.confirmed))


def rollback(store: Store) -> Dict[str, object]:
    """Returns to the previous version; see ``State.rolled_back``."""
    return store.describe(store.change(State.rolled_back))


@contextlib.contextmanager
def holding(path: str, say: Say = lambda text: None) -> Iterator[None]:
    """Holds the lock of a file, waiting for it.

    Raises:
        StoreError: the file can't be made.
    """
    with _refusing(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command on {}".format(os.path.dirname(path)))
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_held(path: str) -> bool:
    """Whether a process holds the lock of a file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def make_root(root: str) -> None:
    """Makes the folder of all models, where there is none.

    Raises:
        StoreError: it is somebody else's, or can't be made.
    """
    with _refusing(root):
        make_folder(os.path.abspath(root))
        _check_folder(root, follow=True)


def _check_folder(path: str, follow: bool) -> None:
    info = os.stat(path, follow_symlinks=follow)
    if not stat.S_ISDIR(info.st_mode):
        raise StoreError("{}: isn't a folder [store-folder]".format(path))
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
        text = "{}: {} [store-folder]".format(path, describe_owner(info))
        raise StoreError(text, OWNER_HINT)


@contextlib.contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = "{}: {} [store-folder]".format(error.filename or path, error.strerror)
        raise StoreError(text, "name the store with --store, or install a version first") from None
