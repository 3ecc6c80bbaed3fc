"""Power cuts: records what a command does to a disk, and makes the disks that a cut may leave.

What was synced is there. Of everything later any part may be there or be missing: names without data, data without
names, a later change without an earlier one. Only a rename happens at once.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edgecompile.runtime.format import output
from edgecompile.runtime.store import disk


class Change(NamedTuple):
    """A change of a node, which is a file or a folder; its ``kind`` is data, name or sync.

    A name is given to the node ``child``, or taken away where that is None; a rename also takes ``old`` away.
    """

    kind: str
    node: int
    name: str = ""
    child: int | None = None
    old: str = ""
    data: bytes = b""


#: Stands for the folder that the root is in, of which nothing is noted.
OUTSIDE = -1
#: The paths of a disk below its root: the bytes of a file, the target of a link; None for a folder.
Tree = dict[str, bytes | str | None]


class Recorder:
    """Stands for the module ``os`` where a store changes files, and notes each call that does.

    Args:
        root: the folder that the disk consists of; what is there already is synced.
        files: whether a file's fsync does anything.
        folders: the same of a folder.
        at_once: whether the file system has a syncfs that waits.
    """

    def __init__(
        self, root: Path, *, files: bool = True, folders: bool = True, at_once: bool = False
    ) -> None:
        self.root = str(root)
        self.files, self.folders, self.at_once = files, folders, at_once
        self.changes: list[Change] = []
        self.nodes: list[bytes | str | None] = [None]
        self.names: dict[int, dict[str, int]] = {0: {}}
        self._open: dict[int, tuple[int, str]] = {}
        #: The number of changes before each descriptor.
        self._opened: dict[int, int] = {}
        for path in read_tree(self.root):
            self._note(os.path.join(root, path))
        self.base = len(self.changes)

    def __enter__(self) -> Recorder:
        self._replaced = [(module, module.os) for module in (disk, output)]
        for module, _ in self._replaced:
            module.os = self  # type: ignore[attr-defined]
        self._syncfs = disk.is_synced_at_once, disk.sync_file_system
        disk.is_synced_at_once = lambda fd: self.at_once
        disk.sync_file_system = self.sync_file_system
        return self

    def __exit__(self, *_: object) -> None:
        for module, real in self._replaced:
            module.os = real  # type: ignore[attr-defined]
        disk.is_synced_at_once, disk.sync_file_system = self._syncfs
        self._look()
        made = self._make(self.changes, [], set())
        assert made == read_tree(self.root), "something was changed elsewhere"

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # --- The calls
    def open(self, path: str, flags: int, *rest: Any) -> int:
        fd = os.open(path, flags, *rest)
        self._look()
        node = self._note(path) if flags & os.O_CREAT else self._find(path)
        self._open[fd], self._opened[fd] = (node, path), len(self.changes)
        return fd

    def write(self, fd: int, data: bytes) -> int:
        self._look()
        count = os.write(fd, data)
        self._look()
        return count

    def close(self, fd: int) -> None:
        self._look()
        self._open.pop(fd, None)
        os.close(fd)

    def fsync(self, fd: int) -> None:
        self._look()
        os.fsync(fd)
        if self.folders if stat.S_ISDIR(os.fstat(fd).st_mode) else self.files:
            self._add(Change("sync", self._open[fd][0]))

    def sync_file_system(self, fd: int) -> None:
        """Syncs what was written since ``fd`` was opened: another process may have heard of errors before."""
        self._look()
        before = self.changes[self.base : self._opened[fd]]
        early = {change.node for change in before if change.kind == "data"}
        for node in set(range(len(self.nodes))) - early:
            self._add(Change("sync", node))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        self._note(path)

    def symlink(self, target: str, path: str) -> None:
        os.symlink(target, path)
        self._note(path)

    def link(self, source: str, path: str, **rest: Any) -> None:
        os.link(source, path, **rest)
        parent, name = self._split(path)
        self._add(Change("name", parent, name, self._find(source)))

    def rename(self, source: str, path: str) -> None:
        self._look()
        node = self._find(source)
        os.replace(source, path)
        parent, name = self._split(path)
        self._add(Change("name", parent, name, node, self._split(source)[1]))

    replace = rename

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self._add(Change("name", *self._split(path)))

    def rmdir(self, path: str) -> None:
        os.rmdir(path)
        self._add(Change("name", *self._split(path)))

    # --- The model
    def _note(self, path: str) -> int:
        """A new node, and its name."""
        node = len(self.nodes)
        mode = os.lstat(path).st_mode
        content: bytes | str | None = b""
        if stat.S_ISDIR(mode):
            content, self.names[node] = None, {}
        elif stat.S_ISLNK(mode):
            content = os.readlink(path)
        self.nodes.append(content)
        self._add(Change("name", *self._split(path), node))
        if content == b"":
            self._compare(node, path)
        return node

    def _add(self, change: Change) -> None:
        self.changes.append(change)
        _apply(change, self.names, self.nodes)

    def _look(self) -> None:
        """Notes what was written since, also by streams, whose calls aren't seen."""
        for node, path in list(self._open.values()):
            if node != OUTSIDE and isinstance(self.nodes[node], bytes) and os.path.exists(path):
                self._compare(node, path)

    def _compare(self, node: int, path: str) -> None:
        data = Path(path).read_bytes()
        if data != self.nodes[node]:
            self._add(Change("data", node, data=data))

    def _split(self, path: str) -> tuple[int, str]:
        return self._find(os.path.dirname(path)), os.path.basename(path)

    def _find(self, path: str) -> int:
        parts = Path(os.path.relpath(path, self.root)).parts
        if parts == ("..",):
            return OUTSIDE
        node = 0
        for name in parts:
            node = self.names[node][name]
        return node

    # --- The cuts
    def cuts(self, unread: re.Pattern[str] | None = None) -> Iterator[Tree]:
        """Each disk that a cut may leave, once: after each change, with every kind of loss.

        Disks that differ only in paths that begin with ``unread`` count as one.
        """
        seen = set()
        for length in range(self.base, len(self.changes) + 1):
            for tree in self._losses(length):
                key = frozenset(
                    item for item in tree.items() if unread is None or not unread.match(item[0])
                )
                if key not in seen:
                    seen.add(key)
                    yield tree

    def worst(self) -> Tree:
        """The disk after a cut now, with nothing but what was synced."""
        kept, pending = self._divide(len(self.changes))
        return self._make(kept, pending, set())

    def _divide(self, length: int) -> tuple[list[Change], list[Change]]:
        synced = {}
        for number, change in enumerate(self.changes[:length]):
            if change.kind == "sync":
                synced[change.node] = number
        kept, pending = self.changes[: self.base], []
        for number, change in enumerate(self.changes[self.base : length], self.base):
            if change.kind != "sync":
                (kept if number < synced.get(change.node, -1) else pending).append(change)
        return kept, pending

    def _losses(self, length: int) -> Iterator[Tree]:
        kept, pending = self._divide(length)
        every = range(len(pending))
        names = [number for number in every if pending[number].kind == "name"]
        chosen = [set(every), set(), set(names), set(every) - set(names)]
        chosen += [set(names[:count]) for count in range(1, len(names))]
        chosen += [{number} for number in every] + [set(every) - {number} for number in every]
        for choice in chosen:
            yield self._make(kept, pending, choice)
        for number in every:  # a part of what was written
            if pending[number].kind == "data":
                half = pending[number]._replace(
                    data=pending[number].data[: len(pending[number].data) // 2]
                )
                yield self._make(
                    kept, [*pending[:number], half, *pending[number + 1 :]], set(every)
                )

    def _make(self, kept: list[Change], pending: list[Change], choice: set[int]) -> Tree:
        applied = set(map(id, kept)) | {id(pending[number]) for number in choice}
        names: dict[int, dict[str, int]] = {
            node: {} for node, content in enumerate(self.nodes) if content is None
        }
        nodes = [b"" if isinstance(content, bytes) else content for content in self.nodes]
        # Kept and pending ones in their order.
        order = {id(change): number for number, change in enumerate(self.changes)}
        for change in sorted([*kept, *pending], key=lambda item: order.get(id(item), len(order))):
            if id(change) in applied:
                _apply(change, names, nodes)
        return dict(_walk(0, "", names, nodes))


def _apply(change: Change, names: dict[int, dict[str, int]], nodes: list[Any]) -> None:
    if change.kind == "data":
        nodes[change.node] = change.data
    elif change.kind == "name":
        names[change.node].pop(change.old or change.name, None)
        if change.child is not None:
            names[change.node][change.name] = change.child


def _walk(
    node: int, path: str, names: dict[int, dict[str, int]], nodes: list[Any]
) -> Iterator[tuple[str, bytes | str | None]]:
    for name, child in names[node].items():
        yield path + name, nodes[child]
        if nodes[child] is None:
            yield from _walk(child, path + name + "/", names, nodes)


def read_tree(root: str) -> Tree:
    """The disk at ``root``, a folder before what is in it; without the files that are locked."""
    tree: Tree = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            if name not in ("lock", "installing", ".unpacking"):
                content = str(path.readlink()) if path.is_symlink() else None
                if content is None and not path.is_dir():
                    content = path.read_bytes()
                tree[str(path.relative_to(root))] = content
    return tree


def write_tree(tree: Tree, root: Path) -> None:
    """Makes the disk at ``root``."""
    root.mkdir()
    for path, content in tree.items():
        place = root / path
        if content is None:
            place.mkdir()
        elif isinstance(content, str):
            place.symlink_to(content)
        else:
            place.write_bytes(content)
