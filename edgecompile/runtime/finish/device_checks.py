"""Checks before a build: the right device, enough memory, enough disk."""

import contextlib
import errno
import os
from typing import Iterator, List, NamedTuple, Optional

from ..base.errors import DeviceDiskError, DeviceMemoryError, EngineCacheError, WrongDeviceError
from ..format.manifest.schema import Manifest
from ..format.recipe.schema import Recipe, version_pair
from ..gpu.device import DeviceIdentity
from .attempts import LEAST_WORKSPACE

#: Beside the engine: the timing cache, stamps, what a file system needs for itself.
_DISK_RESERVE = 64 << 20


class FreeMemory(NamedTuple):
    """Free bytes: of the GPU, and of main memory where that is another; None: not known, or the same."""

    gpu: int
    host: Optional[int] = None


class Allowed(NamedTuple):
    """The limits that a build may begin with.

    ``workspace``: bytes. ``notes``: for people. ``short``: the prediction says that memory won't do, and the user wants
    it tried.
    """

    workspace: int
    notes: List[str]
    short: bool = False


def check_device(recipe: Recipe, identity: DeviceIdentity, force: bool) -> List[str]:
    """Compares a device with the one that a recipe is for.

    Args:
        recipe: the recipe of the bundle.
        identity: the device.
        force: accept a GPU of another compute capability.

    Returns:
        What differs and doesn't matter, for people.

    Raises:
        WrongDeviceError: names everything that does matter.
    """
    wrong: List[str] = []
    notes: List[str] = []
    least, below = version_pair(recipe.least), version_pair(recipe.below)
    if not least <= version_pair(identity.tensorrt) < below:
        ranges = [(recipe.least, recipe.below), *((form.least, form.below) for form in recipe.also)]
        told = ["{} and later, below {}".format(*item) for item in ranges]
        text = "TensorRT {} is installed, the recipe is for {}"
        wrong.append(text.format(identity.tensorrt, ", or for ".join(told)))
    release = recipe.jetpack.partition(".")[0]
    if identity.jetpack not in ("", release):
        text = "JetPack {} (L4T {}) is installed, the recipe is for {}"
        made_for = "JetPack " + recipe.jetpack if release else "machines without JetPack"
        wrong.append(text.format(identity.jetpack, identity.l4t, made_for))
    target = recipe.device
    if identity.compute_capability != target.compute_capability:
        text = "the GPU has compute capability {}, the recipe is for {}"
        text = text.format(identity.compute_capability, target.compute_capability)
        (notes if force else wrong).append(text)
    if wrong:
        head = "{} can't be finished on {}: ".format(target.name, identity)
        hint = "build the bundle for this device (edgecompile build --target, --jetpack)"
        raise WrongDeviceError(head + "; ".join(wrong), hint)
    # CUDA calls every Orin "Orin"; elsewhere there may be no device tree, or one that says little.
    model = identity.model if recipe.jetpack else identity.name
    if model and not any(part in model for part in target.models):
        text = "this is {}, the recipe was made for {}: its buckets suit that one better"
        notes.append(text.format(model, target.name))
    elif identity.sm_count != target.sm_count:
        text = "the GPU has {} SMs, the recipe was made for {}"
        notes.append(text.format(identity.sm_count, target.sm_count))
    return notes


def check_memory(
    manifest: Manifest,
    recipe: Recipe,
    identity: DeviceIdentity,
    room: FreeMemory,
    asked: Optional[int],
    force: bool,
) -> Allowed:
    """The workspace that the first attempt may have, from what is predicted and free.

    Args:
        manifest: the bundle's; names the buckets.
        recipe: the recipe with the predictions.
        identity: the device.
        room: the free memory of the GPU and of the host.
        asked: the workspace that the user wants, or None.
        force: turn errors into notes.

    Raises:
        DeviceMemoryError: the engine can't be built or run in all of the device's memory, or not
            in what is free now; with the numbers.
    """
    free, total, predicted = room.gpu, identity.memory_bytes, recipe.predicted
    wrong = []
    for number, scratch in enumerate(predicted.scratch_bytes):
        need = predicted.engine_bytes + scratch
        if need > total:
            text = "bucket {} ({}) needs {} to run: {} of the engine, {} of activations"
            sizes = (_mib(need), _mib(predicted.engine_bytes), _mib(scratch))
            wrong.append(text.format(number, manifest.buckets[number], *sizes))
    workspace = recipe.workspace_bytes if asked is None else asked
    least = min(workspace, LEAST_WORKSPACE) if asked is None else asked
    # The prediction holds with all of the recipe's workspace; what remains can't be made smaller.
    fixed = max(predicted.build_bytes - recipe.workspace_bytes, 0)
    hint = "--force tries it all the same ({})".format(predicted.how)
    if fixed + least > total:
        text = "the build needs {}, {} of workspace included"
        wrong.append(text.format(_mib(fixed + least), _mib(least)))
    notes = []
    if wrong:
        text = "predicted to need more than the {} of memory that this device has: {}"
        text = text.format(_mib(total), "; ".join(wrong))
        if not force:
            hint = "build the bundle with smaller buckets or another precision; " + hint
            raise DeviceMemoryError(text, hint)
        notes.append(text)
    elif fixed + least > free:
        text = "the build is predicted to need {}, {} of workspace included; {} of {} are free"
        text = text.format(_mib(fixed + least), _mib(least), _mib(free), _mib(total))
        if not force:
            raise DeviceMemoryError(text, "end other programs first; " + hint)
        notes.append(text)
    host = predicted.host_bytes
    if host is not None and room.host is not None and host > room.host:
        text = "the build is predicted to take {} of main memory, and {} are free"
        text = text.format(_mib(host), _mib(room.host))
        if not force:
            raise DeviceMemoryError(text, "end other programs first; " + hint)
        notes.append(text)
    short = bool(notes)
    if asked is not None:
        return Allowed(asked, notes, short)
    # Half of what is free at most: TensorRT's other memory isn't bounded by anything.
    share = min(free // 2, max(free - fixed, 0))
    allowed = max(min(workspace, share), least)
    if allowed < workspace:
        text = "workspace capped to {} of the recipe's {}: {} of memory are free"
        notes.append(text.format(_mib(allowed), _mib(workspace), _mib(free)))
    return Allowed(allowed, notes, short)


def check_disk(path: str, recipe: Recipe) -> None:
    """Raises DeviceDiskError unless the disk of the folder ``path`` has space for the engine."""
    try:
        disk = os.statvfs(path)
    except OSError as error:
        text = "{}: can't be used for engines: {}"
        raise EngineCacheError(text.format(path, error.strerror)) from None
    free = disk.f_bavail * disk.f_frsize
    need = recipe.predicted.engine_bytes + _DISK_RESERVE
    if free < need:
        raise DeviceDiskError(
            "{}: {} are free, about {} are needed: {} of the engine and a reserve".format(
                path, _mib(free), _mib(need), _mib(recipe.predicted.engine_bytes)
            ),
            "make space, or name a folder on another disk in EDGECOMPILE_CACHE",
        )


def _mib(size: int) -> str:
    return "{:,} MiB".format((size + (1 << 20) - 1) >> 20)


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turns errors of the cache's disk into those that ``finish`` ends with."""
    try:
        yield
    except OSError as error:
        text = "{}: {}".format(error.filename or path, error.strerror or error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DeviceDiskError(text, "make space and run finish again") from None
        raise EngineCacheError(text) from None
