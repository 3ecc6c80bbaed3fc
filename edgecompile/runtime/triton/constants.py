"""Weights on the GPU: copied once per process, whatever number of programs and models uses them."""

import os
import threading
from typing import Dict, Tuple

from ..errors import GpuError
from ..format.schema import FileEntry
from ..format.weights import Constant, Weights
from .driver import Driver


class DeviceConstants:
    """A weights file's tensors on the GPU; each model that uses them releases them once."""

    def __init__(self, driver: Driver, weights: Weights) -> None:
        self._driver = driver
        self.users = 0
        spans = [(item.offset, item.offset + item.nbytes) for item in weights.constants]
        start = min([first for first, _ in spans], default=0)
        self.nbytes = max([end for _, end in spans], default=start) - start
        self.address = 0
        if self.nbytes:
            try:
                self.address = driver.malloc(self.nbytes)
                driver.upload(self.address, weights.address + start, self.nbytes)
            except GpuError as error:
                self.free()
                text = "{} bytes of weights: {}".format(self.nbytes, error.message)
                raise GpuError(text, error.hint, error.name, error.number, error.sticky) from None
        #: By name, each with its address.
        self.table: Dict[str, Tuple[Constant, int]] = {
            item.name: (item, self.address + item.offset - start) for item in weights.constants
        }

    def free(self) -> None:
        """Gives the memory back."""
        address, self.address = self.address, 0
        if address:
            self._driver.free(address)


_shared: Dict[Tuple[str, str], DeviceConstants] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _shared.clear()  # CUDA isn't there after a fork


os.register_at_fork(after_in_child=_after_fork)


def share_constants(driver: Driver, weights: Weights, entry: FileEntry) -> DeviceConstants:
    """Copies the tensors to the GPU, or returns the copy of a file of the same hash.

    Raises:
        GpuError: there isn't the memory, or CUDA failed otherwise.
    """
    with _lock:
        key = (driver.path, entry.sha256)
        constants = _shared.get(key)
        if constants is None:
            constants = _shared[key] = DeviceConstants(driver, weights)
        constants.users += 1
        return constants


def release_constants(constants: DeviceConstants) -> None:
    """Gives them up; the last of their users frees them.

    Raises:
        GpuError: CUDA failed.
    """
    with _lock:
        constants.users -= 1
        if constants.users > 0:
            return
        for key in [key for key, item in _shared.items() if item is constants]:
            del _shared[key]
    constants.free()
