"""Hostile bundles by number: the same seed and number give the same files."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from edgecompile.runtime.format.manifest.parse import MAX_MANIFEST_BYTES
from tests.hostile.archives import hostile_golden, hostile_weights
from tests.hostile.toy import PROBE, PROGRAMS, RUNTIME, WEIGHTS, ToyLibraries, make_toy_bundle
from tests.hostile.trees import (
    Members,
    find,
    hostile_value,
    mutate,
    mutate_bytes,
    render,
    replace,
    to_tree,
)

MANIFEST = "manifest.json"
GOLDEN = "golden/0-hint.npz"


class Special(NamedTuple):
    """The thing in the place of a file: "link" (to ``target``), "folder", "pipe", "socket", "device",
    "missing", or "sparse" (a file of ``size`` zeros)."""

    kind: str
    target: str = ""
    size: int = 0


Content = bytes | Special


@dataclass
class Case:
    """One bundle: what lies at each path below its folder, and what was done to it."""

    entries: dict[str, Content]
    done: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Writes the bundle; ``folder`` mustn't exist."""
        folder.mkdir(parents=True)
        for name, content in self.entries.items():
            _write(folder / name, content)


def _write(path: Path, content: Content) -> None:
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content.kind == "link":
        path.symlink_to(content.target)
    elif content.kind == "folder":
        path.mkdir()
    elif content.kind == "pipe":
        os.mkfifo(path)
    elif content.kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            # A path for a socket has at most 108 bytes.
            fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                listener.bind(f"/proc/self/fd/{fd}/{path.name}")
            finally:
                os.close(fd)
    elif content.kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        except PermissionError:
            os.mkfifo(path)  # only root makes devices
    elif content.kind == "sparse":
        with path.open("wb") as file:
            file.truncate(content.size)


class Corpus:
    """The bundles of one seed.

    Args:
        seed: of all of them.
        libraries: see toy.py.
        canary: a folder that no loader has a reason to touch; links and paths lead there.
    """

    def __init__(self, seed: int, libraries: ToyLibraries, canary: Path) -> None:
        self.seed = seed
        self.libraries = libraries
        self.canary = canary
        base = make_toy_bundle(canary, libraries)
        self.files: dict[str, bytes] = dict(base.files)
        self._document = render(to_tree(base.document))
        self._tree = to_tree(base.document)

    def valid(self) -> Case:
        """The bundle that the others are made from."""
        return _Draft(self, random.Random(0)).finish()

    def case(self, number: int) -> Case:
        """Bundle ``number``, with one to three things done to it; a few of them are harmless."""
        rng = random.Random(f"{self.seed}:{number}")
        draft = _Draft(self, rng)
        changes = rng.choices(_CHANGES, _WEIGHTS, k=rng.choice((1, 1, 1, 2, 3)))
        # Content comes before its hash, the manifest before its text.
        for change in sorted(changes, key=_CHANGES.index):
            draft.done.append(change.__name__.strip("_"))
            change(draft)
        return draft.finish()


class _Draft:
    def __init__(self, corpus: Corpus, rng: random.Random) -> None:
        self.corpus = corpus
        self.rng = rng
        self.files: dict[str, Content] = dict(corpus.files)
        self.recorded: dict[str, bytes] = dict(corpus.files)
        self.document = to_tree_copy(corpus._tree)
        self.edits: list[Callable[[bytes], bytes]] = []
        self.changes_of_tree: list[Callable[[Members], None]] = []
        self.done: list[str] = []

    def put(self, name: str, data: bytes, honest: bool) -> None:
        """Changes a file; an honest manifest has the hash and size of what it became."""
        self.files[name] = data
        if honest:
            self.recorded[name] = data

    def finish(self) -> Case:
        entries = Members()
        for name, data in sorted(self.recorded.items()):
            digest = hashlib.sha256(data).hexdigest()
            entries.append([name, Members([["size", len(data)], ["sha256", digest]])])
        self.document.append(["files", entries])
        for change in self.changes_of_tree:
            change(self.document)
        manifest = render(self.document).encode("utf-8", "surrogatepass")
        for edit in self.edits:
            manifest = edit(manifest)
        present = {name: item for name, item in self.files.items() if item != Special("missing")}
        return Case({MANIFEST: manifest, **present}, self.done)


def to_tree_copy(tree: Any) -> Any:
    """A tree that shares nothing with the given one."""
    if isinstance(tree, Members):
        return Members([key, to_tree_copy(value)] for key, value in tree)
    if isinstance(tree, list):
        return [to_tree_copy(item) for item in tree]
    return tree


# --- files, with or without their hash
def _weights(draft: _Draft) -> None:
    draft.put(WEIGHTS, hostile_weights(draft.rng), draft.rng.random() < 0.9)


def _golden(draft: _Draft) -> None:
    draft.put(GOLDEN, hostile_golden(draft.rng, draft.corpus.files[GOLDEN]), True)


def _swapped_library(draft: _Draft) -> None:
    """Another library than the recorded one; it says so when it is loaded."""
    name = draft.rng.choice((PROBE, RUNTIME, *PROGRAMS))
    intruder = draft.corpus.libraries.intruder
    if draft.rng.random() < 0.5:
        size = len(draft.corpus.files[name])
        # Of the same size, so that it is the hash that differs.
        intruder = intruder[:size].ljust(size, b"\0")
    draft.put(name, intruder, False)


def _wrong_library(draft: _Draft) -> None:
    """Recorded rightly, but not what it should be."""
    names = (PROBE, RUNTIME, *PROGRAMS)
    libraries = draft.corpus.libraries
    contents = (b"", b"no library", b"#!/bin/sh\n", libraries.program[:64], *libraries[:3])
    draft.put(draft.rng.choice(names), draft.rng.choice(contents), True)


def _damaged_file(draft: _Draft) -> None:
    name = draft.rng.choice(sorted(draft.files))
    data = draft.corpus.files[name]
    draft.put(name, mutate_bytes(draft.rng, data, 1 << 16), False)


# --- the manifest's values
def _values(draft: _Draft) -> None:
    def change(tree: Members) -> None:
        for _ in range(draft.rng.choice((1, 1, 1, 2, 4))):
            mutate(draft.rng, tree)

    draft.changes_of_tree.append(change)


def _values_but_files(draft: _Draft) -> None:
    """Where more depends on the values than in the list of files."""

    def change(tree: Members) -> None:
        files = find(tree, "files")
        others = [pair for pair in tree if pair[1] is not files]
        part = Members(others)
        for _ in range(draft.rng.choice((1, 1, 2))):
            mutate(draft.rng, part)
        tree[:] = [*part, ["files", files]]

    draft.changes_of_tree.append(change)


def _sizes(draft: _Draft) -> None:
    """Sizes of axes that are consistent, and may be huge."""
    rng = draft.rng

    def change(tree: Members) -> None:
        axis = rng.choice(("batch", "length"))
        top = rng.choice((1, 3, 64, 4096, 10**6, 2**24, 2**28, 2**30, 2**31 - 1, 2**31))
        hint = rng.choice((1, top // 2 + 1, top))
        replace(find(tree, "axes"), axis, to_tree({"lo": 1, "hi": top}))
        for bucket in find(tree, "buckets"):
            extent = to_tree({"lo": 1, "hi": top, "hint": hint})
            replace(find(bucket, "axes"), axis, extent)

    draft.changes_of_tree.append(change)


def _escape(draft: _Draft) -> None:
    """A path out of the folder, in every place that names the file, with its true hash."""
    rng = draft.rng
    name = rng.choice((WEIGHTS, PROBE, RUNTIME, *PROGRAMS, GOLDEN))
    canary = draft.corpus.canary
    ways = (
        f"../../{canary.name}/{name}", f"{canary}/{name}", f"/{canary}/{name}",
        f"code/../../../{canary.name}/{name}", f"./../../{canary.name}/{name}", f"//{name}",
        f"../../{canary.name}/{name}\0", f"code//../../../{canary.name}/{name}",
        f"..\\..\\{canary.name}\\{name}", f"{name}/.", f"{name}/", f"./{name}", f"../{name}",
        f"/proc/self/cwd/{canary}/{name}", f"~/{name}", f"{name}\0", "/proc/self/exe",
    )  # fmt: skip
    path = rng.choice(ways)

    draft.changes_of_tree.append(lambda tree: _rename(tree, name, path))


def _rename(tree: Any, old: str, new: str) -> None:
    """Puts ``new`` in place of the text ``old``, also where it is a key."""
    for index, item in enumerate(tree):
        if isinstance(item, list):
            _rename(item, old, new)
        elif item == old:
            tree[index] = new


def _file_entries(draft: _Draft) -> None:
    rng = draft.rng

    def change(tree: Members) -> None:
        files = find(tree, "files")
        one, other = rng.choice(files), rng.choice(files)
        kind = rng.randrange(6)
        if kind == 0:
            one[1], other[1] = other[1], one[1]
        elif kind == 1:
            replace(one[1], "size", rng.choice((0, -1, 1, 2**31, 2**63 - 1, 2**62)))
        elif kind == 2:
            files.remove(one)
        elif kind == 3:
            digest = str(find(one[1], "sha256"))
            changes = (digest.upper(), digest[:-1], digest + "0", digest[::-1], "0" * 64, "g" * 64)
            replace(one[1], "sha256", rng.choice(changes))
        elif kind == 4:
            files.append([rng.choice(("no/such/file", "code", "golden", "canary")), one[1]])
        else:
            files.append([one[0], other[1]])

    draft.changes_of_tree.append(change)


def _many(draft: _Draft) -> None:
    """Many entries of one kind."""
    rng = draft.rng
    count = rng.choice((17, 65, 257, 3000))

    def change(tree: Members) -> None:
        key = rng.choice(
            (
                "files",
                "golden",
                "inputs",
                "outputs",
                "buckets",
                "variants",
                "built_by",
                "axes",
                "probes",
            )
        )
        value = find(tree, key)
        if not isinstance(value, list) or not value:
            return
        if isinstance(value, Members):
            value += [[f"{value[0][0]}{i}", value[0][1]] for i in range(count)]
        else:
            value += [rng.choice(value)] * count

    draft.changes_of_tree.append(change)


def _unknown(draft: _Draft) -> None:
    """A key that nobody knows: to be ignored."""

    def change(tree: Members) -> None:
        where = draft.rng.choice((tree, find(tree, "tolerance"), find(tree, "plan")))
        where.append(["a_key_of_later", hostile_value(draft.rng)])

    draft.changes_of_tree.append(change)


# --- the manifest's text
def _text(draft: _Draft) -> None:
    draft.edits.append(lambda data: mutate_bytes(draft.rng, data, MAX_MANIFEST_BYTES))


# --- what lies on the disk
def _kind(draft: _Draft) -> None:
    """Something else where a file should lie."""
    rng = draft.rng
    name = rng.choice((*sorted(draft.corpus.files), WEIGHTS, RUNTIME))
    up = "../" * (name.count("/") + 2)
    canary = draft.corpus.canary
    choices = (
        Special("link", f"{canary}/{name}"), Special("link", f"{up}{canary.name}/{name}"),
        Special("link", name.rpartition("/")[2]), Special("link", "no such file"),
        Special("link", "/dev/zero"), Special("link", "/proc/self/mem"), Special("folder"),
        Special("pipe"), Special("socket"), Special("device"), Special("missing"),
        Special("sparse", size=len(draft.corpus.files[name])), Special("sparse", size=1 << 40),
    )  # fmt: skip
    draft.files[name] = rng.choice(choices)


def _manifest_kind(draft: _Draft) -> None:
    canary = draft.corpus.canary
    kinds = ("folder", "pipe", "socket", "device")
    choices = [Special(kind) for kind in kinds] + [Special("link", f"{canary}/{MANIFEST}")]
    choices += [Special("sparse", size=MAX_MANIFEST_BYTES), Special("sparse", size=1 << 42)]
    chosen = draft.rng.choice(choices)
    finish = draft.finish
    draft.finish = lambda: _with_manifest(finish(), chosen)  # type: ignore[method-assign]


def _with_manifest(case: Case, content: Content) -> Case:
    return Case({**case.entries, MANIFEST: content}, case.done)


def _folder_link(draft: _Draft) -> None:
    """A folder on the way to a file is a link to one that holds the very same."""
    top = draft.rng.choice(("code", "code/toy", "golden"))
    up = "../" * (top.count("/") + 2)
    canary = draft.corpus.canary
    for name in list(draft.files):
        if name.startswith(top + "/"):
            del draft.files[name]
    draft.files[top] = Special(
        "link", draft.rng.choice((f"{canary}/{top}", f"{up}{canary.name}/{top}", "/", "."))
    )


# In the order in which they are done; what a draft's hooks do comes last.
_CHANGES: list[Callable[[_Draft], None]] = [
    _weights, _golden, _swapped_library, _wrong_library, _damaged_file, _sizes, _escape, _many,
    _file_entries, _unknown, _values_but_files, _values, _text, _kind, _folder_link, _manifest_kind,
]  # fmt: skip
_WEIGHTS = [20, 8, 4, 3, 4, 3, 5, 2, 5, 1, 18, 12, 8, 5, 1, 1]
