"""The engine that a bundle may bring along: its entry in the recipe, and how it gets into the cache.

It was built on the build host's own GPU. Where a device is the same in all that an engine depends on,
``finish`` tests it and puts its stamp on it instead of building one.
"""

import os
import re
import shutil
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..format.document import Reader, join, shorten
from ..format.folder import BundleFolder
from ..format.recipe_schema import ShippedEngine
from ..format.schema import Manifest
from ..gpu.device import DeviceIdentity

_TEXT = re.compile(r"[ -~]{1,200}")
_MAX_SMS = 4096
#: What ``DeviceIdentity.key_json`` has; the others are strings.
_STRINGS = ("model", "l4t", "name", "compute_capability", "driver", "tensorrt")


def read_shipped(
    reader: Reader, entry: Dict[str, Any], file: str, manifest: Manifest
) -> Optional[ShippedEngine]:
    """The recipe's ``engine``; None when a problem was noted.

    Args:
        reader: gets the problems.
        entry: the entry.
        file: its ``file``, which was looked at.
        manifest: of the bundle.
    """
    before = reader.problems.count
    made_by = reader.string(entry, "made_by", "engine")
    if made_by is not None:
        _check_text(reader, made_by, "engine.made_by")
    device = _device(reader, reader.mapping(entry, "device", "engine"))
    count = len(manifest.buckets)
    items = reader.items(entry, "profile_of", "engine", 1, 256)
    numbers = [reader.as_integer(item, "engine.profile_of") for item in items]
    if items and len(items) != count:
        text = "{} profiles for {} buckets".format(len(items), count)
        reader.problems.add("recipe-engine", "engine.profile_of", text)
    for number in numbers:
        if number is not None and not 0 <= number < count:
            text = "{} isn't within 0..{}".format(number, count - 1)
            reader.problems.add("recipe-engine", "engine.profile_of", text)
    names = [item.name for item in (*manifest.inputs, *manifest.outputs)]
    tensors = _tensors(reader, reader.mapping(entry, "tensors", "engine"), names)
    if reader.problems.count > before or made_by is None:
        return None
    profile_of = tuple(number for number in numbers if number is not None)
    return ShippedEngine(file, made_by, device, profile_of, tensors)


def _device(reader: Reader, entry: Dict[str, Any]) -> Dict[str, Any]:
    where = "engine.device"
    result: Dict[str, Any] = {}
    for key in _STRINGS:
        value = reader.string(entry, key, where)
        if value:  # "" where the system doesn't say
            _check_text(reader, value, join(where, key))
        result[key] = value
    result["sm_count"] = count = reader.integer(entry, "sm_count", where)
    if count is not None and not 1 <= count <= _MAX_SMS:
        text = "{} isn't within 1..{}".format(count, _MAX_SMS)
        reader.problems.add("recipe-engine", join(where, "sm_count"), text)
    result["integrated"] = reader.boolean(entry, "integrated", where)
    return result


def _tensors(reader: Reader, entry: Dict[str, Any], names: Sequence[str]) -> Dict[str, str]:
    where = "engine.tensors"
    if entry.keys() != set(names):
        found = ", ".join(shorten(name) for name in sorted(entry)[:128]) or "none"
        text = "has {}, must have {}".format(found, ", ".join(names))
        reader.problems.add("recipe-engine", where, text)
        return {}
    result = {}
    for name in names:
        value = reader.string(entry, name, where)
        if value is not None:
            _check_text(reader, value, join(where, name))
            result[name] = value
    if len(set(result.values())) < len(result):
        reader.problems.add("recipe-engine", where, "two have the same name")
    return result


def _check_text(reader: Reader, value: str, where: str) -> None:
    if not _TEXT.fullmatch(value):
        text = "{!r} must be 1 to 200 printable ASCII characters".format(shorten(value))
        reader.problems.add("recipe-engine", where, text)


def list_differences(shipped: ShippedEngine, identity: DeviceIdentity) -> List[str]:
    """What differs between the device that an engine was built on and this one; [] if it fits."""
    return compare_devices(shipped.device, identity.key_json())


def compare_devices(before: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    """What differs between two ``DeviceIdentity.key_json``, for people."""
    return [
        "{} was {}, is {}".format(name, shorten(before.get(name)), value)
        for name, value in now.items()
        if before.get(name) != value
    ]


def copy_engine(folder: BundleFolder, name: str, output: str) -> None:
    """Copies an engine out of a bundle, durably, after a look at its hash.

    Whoever loads the copy hashes it again, so nobody can exchange it meanwhile.

    Raises:
        DamagedBundleError: it isn't what the manifest lists.
        OSError: it can't be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = folder.open_checked(name)
    with os.fdopen(fd, "rb") as source, os.fdopen(os.open(output, flags, 0o600), "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())
