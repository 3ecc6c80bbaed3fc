"""The cohort of a device: a number by which a release reaches a part of all devices first."""

import hashlib
from typing import NamedTuple, Optional

from ..base.errors import InputError
from ..format.document import shorten

#: Numbers of cohorts; one is a hundredth of a percent.
COHORTS = 10_000
_MACHINE_ID = "/etc/machine-id"


def cohort(device_id: str, model: str, release: int) -> int:
    """The number of a device, from 0 to 9999: the same everywhere, and another one for each release.

    It is the SHA-256 of the three texts, one behind the other, as a number of 256 bits, modulo 10000.

    Args:
        device_id: id of the device, such as the text in /etc/machine-id.
        model: name of the model.
        release: number of the release.

    Raises:
        InputError: a name has bytes that aren't UTF-8.
    """
    data = b"".join(map(_encode, (device_id, model, str(release))))
    return int.from_bytes(hashlib.sha256(data).digest(), "big") % COHORTS


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("{!r}: has bytes that aren't UTF-8".format(shorten(text))) from None


class Share(NamedTuple):
    """The part of all devices that take a release.

    Attributes:
        percent: percent of the devices, those of the lowest cohorts.
        device_id: id of this device.
    """

    percent: float
    device_id: str

    def takes(self, number: int) -> bool:
        """Whether a cohort belongs to it."""
        # Rounded: 0.07 times 100 is a little more than 7.
        return number < round(self.percent * (COHORTS / 100))


def make_share(percent: float, device_id: Optional[str]) -> Share:
    """A part of all devices; without an id this machine's.

    Raises:
        InputError: ``percent`` isn't from 0 to 100, or there is no id in UTF-8.
    """
    if not 0 <= percent <= 100:
        raise InputError("--percent is {:g}, must be from 0 to 100".format(percent))
    return Share(percent, find_device_id(device_id))


def find_device_id(given: Optional[str]) -> str:
    """The given id, or that of this machine.

    Raises:
        InputError: it is empty or isn't UTF-8, or this machine has none.
    """
    text = given
    if text is None:
        try:
            with open(_MACHINE_ID, encoding="ascii") as file:
                text = file.read(256).strip()
        except (OSError, ValueError):
            text = ""
    if not text:
        hint = "name one with --device, always the same"
        raise InputError("this device has no id: {} has none".format(_MACHINE_ID), hint)
    _encode(text)  # before any work is done
    return text
