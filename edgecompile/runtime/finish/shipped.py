"""The engine that a bundle may bring along: where it fits, and how it gets into the cache.

It was built on the build host's own GPU. Where a device is the same in all that an engine depends on,
``finish`` tests it and puts its stamp on it instead of building one.
"""

import os
import shutil
from typing import Any, List, Mapping

from ..format.document import shorten
from ..format.folder import BundleFolder
from ..format.recipe_schema import ShippedEngine
from ..gpu.device import DeviceIdentity


def list_differences(shipped: ShippedEngine, identity: DeviceIdentity) -> List[str]:
    """Differences between the device that an engine was built on and this one; [] if it fits."""
    return compare_devices(shipped.device, identity.key_json())


def compare_devices(before: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    """Differences between two ``DeviceIdentity.key_json``, for people."""
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
