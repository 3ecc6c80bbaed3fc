"""Folders in which installations unpack archives, one for each that runs.

No disk has to keep them, so nobody waits for their names.
"""

import contextlib
import os
import secrets
from typing import Iterator

from .disk import add_folder, remove
from .store import Say, holding, is_held, make_root

_ALL, _LOCK = ".unpacked", ".unpacking"
#: In a folder: the lock of its installation, which ends with the process, and what is unpacked.
_OWN_LOCK, _CONTENT = "lock", "content"


@contextlib.contextmanager
def working(root: str, say: Say) -> Iterator[str]:
    """An empty folder on the disk of a store; it goes with the context.

    Args:
        root: the store.
        say: a function that gets a line of text for every step.

    Raises:
        StoreError: the store can't be used.
    """
    make_root(root)
    lock = os.path.join(root, _LOCK)
    place = os.path.join(root, _ALL, secrets.token_hex(8))
    with contextlib.ExitStack() as stack:
        # This lock is held for moments only, so installations and gc don't wait for each other.
        with holding(lock, say):
            _remove_unheld(root)
            add_folder(os.path.join(root, _ALL), 0o700)
            add_folder(place, 0o700)
            stack.enter_context(holding(os.path.join(place, _OWN_LOCK)))
        try:
            content = os.path.join(place, _CONTENT)
            add_folder(content, 0o700)
            yield content
        finally:
            with holding(lock, say):
                remove(place)
                _remove_unheld(root)


def clear_workspaces(root: str, say: Say) -> None:
    """Removes what killed installations unpacked."""
    if os.path.lexists(os.path.join(root, _ALL)):
        with holding(os.path.join(root, _LOCK), say):
            _remove_unheld(root)


def _remove_unheld(root: str) -> None:
    path = os.path.join(root, _ALL)
    if not os.path.lexists(path):
        return
    held = False
    for name in os.listdir(path):
        place = os.path.join(path, name)
        if is_held(os.path.join(place, _OWN_LOCK)):
            held = True
        else:
            remove(place)
    if not held:
        remove(path)
