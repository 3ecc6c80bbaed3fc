"""Removes versions that nothing needs: neither current nor previous, and not open in any process."""

import os
from typing import Dict, Set, Tuple

from .disk import remove, sync_folder
from .store import Say, Store
from .workspace import clear_workspaces


def collect(store: Store, say: Say = lambda text: None) -> Dict[str, object]:
    """Removes versions that aren't needed, and what killed commands left.

    Returns:
        See ``Store.describe``; also "removed" and "open", ids of versions.

    Raises:
        StoreError: the store can't be used.
    """
    store.check()
    clear_workspaces(os.path.dirname(store.path), say)
    with store.locked("installing", say), store.locked(say=say):
        state = store.read()
        # Before anything goes: the disk must have the state that was read, and the link.
        sync_folder(store.path)
        store.settle(state)
        kept = {state.current, state.previous}
        unneeded = [name for name in sorted(os.listdir(store.versions)) if name not in kept]
        opened = _find_open({name: store.place(name) for name in unneeded})
        dropped = tuple(name for name in unneeded if name not in opened)
        missing = tuple(name for name in state.versions if not os.path.lexists(store.place(name)))
        if any(name in state.versions for name in (*dropped, *missing)):
            state = state.without((*dropped, *(name for name in missing if name not in kept)))
            store.write(state)
        for name in dropped:
            say("removing {}".format(name))
            remove(store.place(name))
        for name in os.listdir(store.path):
            if name.startswith(".edgecompile-") or name == "current.new":
                remove(os.path.join(store.path, name))
        sync_folder(store.versions)
    return {**store.describe(state), "removed": list(dropped), "open": sorted(opened)}


def _find_open(places: Dict[str, str]) -> Set[str]:
    """The versions whose folder a process has open, as every program that runs a bundle does."""
    inodes: Dict[Tuple[int, int], str] = {}
    for name, place in places.items():
        info = os.stat(place, follow_symlinks=False)
        inodes[info.st_dev, info.st_ino] = name
    found: Set[str] = set()
    for process in filter(str.isdigit, os.listdir("/proc") if inodes else ()):
        folder = os.path.join("/proc", process, "fd")
        try:
            descriptors = os.listdir(folder)
        except OSError:  # it ended, or is somebody else's
            continue
        for descriptor in descriptors:
            try:
                info = os.stat(os.path.join(folder, descriptor))
            except OSError:
                continue
            if (info.st_dev, info.st_ino) in inodes:
                found.add(inodes[info.st_dev, info.st_ino])
    return found
