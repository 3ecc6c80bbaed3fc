"""The folder of finished engines: a folder per key, a stamp as its last file.

The key is a digest of everything that TensorRT says an engine depends on and of everything that it
was built from; neither names nor times are part of it. A folder holds

    engine-<digest>.plan   the engine, its name made of its own SHA-256
    built.json             it was built, but not tested yet
    stamp.json             it was tested: which file, from what, for what, with which result

Every file comes by a rename. Without a stamp an engine isn't used, so nothing here has to be tidy.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..base.errors import BundleError, EngineCacheError
from ..format.document import Field, Problems, parse_json
from ..format.files.folder import BundleFolder
from ..format.files.hashes import hash_descriptor
from ..format.manifest.schema import Manifest, Variant
from ..format.output import make_private, write_output
from ..format.recipe.parse import read_recipe, sibling
from ..format.recipe.schema import Recipe
from .device import DeviceIdentity

CACHE_VARIABLE = "EDGECOMPILE_CACHE"
STAMP_VERSION = 1
#: Of the settings that no recipe has, part of an engine's key: raised whenever one changes. 2: no TF32. 4: TensorRT 8
#: pins only what it has to.
SETTINGS_VERSION = 4
_MAX_STAMP_BYTES = 4 << 20
_STAMP, _BUILT, _LOCK = "stamp.json", "built.json", "lock"


@dataclass(frozen=True)
class FinishedEngine:
    """An engine that passed its self-test here. ``profile_of`` has the profile of each bucket.

    The file's size was compared, its hash wasn't: whoever loads the engine does that. ``tensors`` has
    what the engine calls an input or output where it isn't the manifest's name, by that name. ``plans`` has the
    bytes of each where the file holds several engines, one behind the other; their profiles are numbered through.
    """

    path: str
    sha256: str
    size: int
    profile_of: Tuple[int, ...]
    stamp: Mapping[str, Any]
    tensors: Mapping[str, str] = field(default_factory=dict)
    plans: Tuple[int, ...] = ()


def cache_root() -> str:
    """$EDGECOMPILE_CACHE, else edgecompile below $XDG_CACHE_HOME or ~/.cache."""
    path = os.environ.get(CACHE_VARIABLE)
    if path:
        return os.path.abspath(path)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # as the XDG specification wants it
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "edgecompile")


def digest(value: object) -> str:
    """SHA-256 of a JSON value, in hex; equal values have equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def describe_content(manifest: Manifest, variant: Variant, recipe: Recipe) -> Dict[str, Any]:
    """The sources of an engine: hashes of ONNX and weights, profiles, options."""
    whole = recipe.to_json()
    sides = [
        {
            "onnx_sha256": manifest.files[sibling(variant, side.onnx)].sha256,
            "float32": None if side.float32 is None else list(side.float32),
            "buckets": list(side.buckets),
        }
        for side in recipe.sides
    ]
    return {
        "onnx_sha256": manifest.files[sibling(variant, recipe.onnx)].sha256,
        "weights_sha256": manifest.files[sibling(variant, recipe.weights)].sha256,
        # The ONNX finds its weights by this name.
        "weights": recipe.weights,
        "float32": whole.get("float32"),
        "profiles": whole["profiles"],
        "builder": whole["builder"],
        "settings": SETTINGS_VERSION,
        **({"sides": sides} if sides else {}),
    }


class KeptFolder:
    """A folder of the cache, which needn't exist, and the lock of who writes to the cache."""

    def __init__(self, path: str) -> None:
        self.path = path

    def join(self, name: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, name)

    def make(self) -> None:
        """Makes it, each level for this user alone.

        Raises:
            EngineCacheError: that isn't possible.
        """
        _make_private(self.path)

    @contextlib.contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[int]:
        """Holds the lock, waiting for it; gives its descriptor, which a child may inherit.

        There is one for all: who builds or tunes measures kernels, and two at once would measure each
        other and share the memory.

        A child that has the descriptor holds the lock as long as it lives, so that nobody else
        begins while it still works, whatever became of its parent.

        Raises:
            EngineCacheError: the lock can't be made.
        """
        fd = self._lock(say)
        try:
            yield fd
        finally:
            os.close(fd)

    def _lock(self, say: Callable[[str], None]) -> int:
        path = os.path.join(cache_root(), _LOCK)
        while True:
            self.make()
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise _unusable(path, error) from None
            try:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
                    text = "another process{} finishes or tunes a bundle: waiting until it is done"
                    say(text.format(" ({})".format(holder) if holder.isdigit() else ""))
                    fcntl.flock(fd, fcntl.LOCK_EX)
                if _is_same_file(fd, path):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, str(os.getpid()).encode("ascii"), 0)
                    return fd
            except OSError as error:
                os.close(fd)
                raise _unusable(path, error) from None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # somebody emptied the cache meanwhile

    def read_record(self, name: str, most: int, absent: str) -> Tuple[Optional[bytes], str]:
        """(a file's bytes, one more than ``most`` at most, ""), or (None, why there are none)."""
        path = self.join(name)
        try:
            with open(path, "rb") as stream:
                return stream.read(most + 1), ""
        except FileNotFoundError:
            return None, absent
        except OSError as error:
            return None, "{} can't be read: {}".format(path, error.strerror)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.join(name))


class EngineFolder(KeptFolder):
    """The folder of one key; it needn't exist."""

    def __init__(self, content: Mapping[str, Any], identity: DeviceIdentity) -> None:
        self.content = dict(content)
        self.identity = identity
        depends = {"version": STAMP_VERSION, "content": content, "device": identity.key_json()}
        self.key = digest(depends)
        root = cache_root()
        super().__init__(os.path.join(root, "engines", self.key))
        # What TensorRT measured holds for every model on this device.
        name = digest(identity.key_json())[:32] + ".cache"
        self.timing_cache = os.path.join(root, "timing", name)

    def make(self) -> None:
        """Makes it and the one of the timing caches, each level for this user alone.

        Raises:
            EngineCacheError: that isn't possible, or others may write there.
        """
        for path in (self.path, os.path.dirname(self.timing_cache)):
            _make_private(path)
        open_to = self._open_to()
        if open_to:
            text = "{}: others than its owner may write there, and an engine is native code"
            raise EngineCacheError(text.format(open_to), "chmod go-w {}".format(open_to))

    def _open_to(self) -> str:
        """The folder of engines, or this one, if group or others may write to it; else ""."""
        for path in (os.path.dirname(self.path), self.path):
            with contextlib.suppress(OSError):
                if os.stat(path).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return path
        return ""

    def read_stamp(self, tested: bool = True) -> Tuple[Optional[FinishedEngine], str]:
        """(what the stamp says, ""), or (None, why there is nothing to be used).

        Args:
            tested: False reads what was built and not tested yet.
        """
        open_to = self._open_to()
        if open_to:
            return None, "others than its owner may write to {}".format(open_to)
        name = _STAMP if tested else _BUILT
        data, why = self.read_record(name, _MAX_STAMP_BYTES, "there is none for this device")
        if data is None:
            return None, why
        try:
            engine = self._parse(data, self.join(name))
        except BundleError as error:
            return None, error.message
        try:
            size = os.stat(engine.path).st_size
        except OSError as error:
            return None, "{}: {}".format(engine.path, error.strerror)
        if size != engine.size:
            return None, "{} has {} bytes, must have {}".format(engine.path, size, engine.size)
        return engine, ""

    def _parse(self, data: bytes, source: str) -> FinishedEngine:
        problems = Problems(source)
        document = Field(problems, parse_json(data, source, _MAX_STAMP_BYTES))
        version, key = document.at("stamp_version").integer(), document.at("key").string()
        entry = document.at("engine").object()
        size, sha256 = entry.at("size").integer(), entry.at("sha256").string()
        plans = entry.find("plans").integers(2, 256) if entry.find("plans").given else ()
        count = len(self.content["profiles"])
        profile_of = document.at("profile_of").integers(count, count)
        tensors = {k: name.string() or "" for k, name in document.find("tensors").members()}
        problems.raise_if_any()
        assert size is not None and sha256 is not None
        well = version == STAMP_VERSION and key == self.key
        if not well or len(sha256) != 64 or not all(char in "0123456789abcdef" for char in sha256):
            raise BundleError("{}: belongs to something else".format(source))
        if any(not 0 <= item < count for item in profile_of):
            raise BundleError("{}: names a profile that doesn't exist".format(source))
        # An engine of one graph in the place of several would be taken for whole.
        graphs = 1 + len(self.content.get("sides", ()))
        if (
            (len(plans) or 1) != graphs
            or (plans and sum(plans) != size)
            or min(plans, default=1) < 1
        ):
            raise BundleError("{}: its engines aren't those of the recipe".format(source))
        path = self.join(engine_name(sha256))
        return FinishedEngine(path, sha256, size, profile_of, document.value, tensors, plans)

    def write_stamp(self, entries: Mapping[str, Any], tested: bool) -> None:
        """Writes the stamp, or without a test what says that an engine was built; durably.

        Raises:
            OSError: it can't be written; the one before is still there.
        """
        document: Dict[str, Any] = {"stamp_version": STAMP_VERSION, "key": self.key}
        document.update(entries, content=self.content, device=self.identity.to_json())
        text = json.dumps(document, indent=1, allow_nan=False)
        path = self.join(_STAMP if tested else _BUILT)
        write_output(path, text.encode("ascii") + b"\n", durable=True)

    def adopt(self, path: str, sha256: str) -> str:
        """Renames a whole engine into place, durably, and returns its path there."""
        target = self.join(engine_name(sha256))
        os.replace(path, target)
        sync_folder(self.path)
        return target

    def tidy(self, keep: Sequence[str], untested: bool = False) -> None:
        """Removes what killed processes left, and engines whose names aren't in ``keep``.

        With ``untested`` also the word that one was built. Only while the lock is held.
        """
        if untested:
            self._remove(_BUILT)
        for name in _names(self.path):
            if name.endswith(".tmp") or (name.startswith("engine-") and name not in keep):
                self._remove(name)

    def others(self) -> List[Tuple[str, Mapping[str, Any], int]]:
        """(key, stamp or {}, bytes) of the engines of other keys."""
        parent = os.path.dirname(self.path)
        result = []
        for key in _names(parent):
            if key == self.key:
                continue
            folder = os.path.join(parent, key)
            size = 0
            for name in _names(folder):
                with contextlib.suppress(OSError):
                    size += os.stat(os.path.join(folder, name)).st_size
            result.append((key, _read_foreign(os.path.join(folder, _STAMP)), size))
        return result


def find(
    folder: BundleFolder, variant: Variant, identity: DeviceIdentity
) -> Optional[FinishedEngine]:
    """The engine of a bundle's TensorRT variant that was finished on this very device, or None.

    Raises:
        BundleError: the recipe breaks a rule.
    """
    recipe = read_recipe(folder, variant).for_tensorrt(identity.tensorrt)
    content = describe_content(folder.manifest, variant, recipe)
    return EngineFolder(content, identity).read_stamp()[0]


def engine_name(sha256: str) -> str:
    """The name of an engine's file: two engines never share one."""
    return "engine-{}.plan".format(sha256[:16])


def is_whole(engine: FinishedEngine) -> bool:
    """Whether the file holds what the stamp says: compares the SHA-256."""
    try:
        fd = os.open(engine.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return hash_descriptor(fd, engine.size) == (engine.sha256, engine.size)
    except OSError:
        return False
    finally:
        os.close(fd)


def sync_folder(path: str) -> None:
    """Makes the renames in a folder outlive a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _names(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _read_foreign(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as stream:
            return parse_json(stream.read(_MAX_STAMP_BYTES + 1), path, _MAX_STAMP_BYTES)
    except (OSError, BundleError):
        return {}


def _make_private(path: str) -> None:
    try:
        make_private(path)
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: str, error: OSError) -> EngineCacheError:
    return EngineCacheError(
        "{}: can't be used as the cache: {}".format(path, error.strerror or error),
        "name another folder in the environment variable " + CACHE_VARIABLE,
    )
