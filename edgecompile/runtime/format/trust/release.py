"""``release.json``: which release of a model a bundle is. Signatures cover it, the manifest doesn't list it."""

import re
from typing import NamedTuple, Optional

from ..document import Field, Problems, parse_json

RELEASE_NAME = "release.json"
MAX_RELEASE_BYTES = 64 << 10
RELEASE_VERSION = 1
#: Times of this form are in order as texts.
_TIME = re.compile(r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z")


class Release(NamedTuple):
    """A release; the times are texts such as 2026-11-30T12:00:00Z.

    Attributes:
        name: name of the model, the manifest's.
        number: number of the release, which rises.
        floor: least number that a device takes once it runs this release.
        created: time of the release.
        expires: time from which it isn't opened where the device says so; None: it never expires.
        note: text for people.
    """

    name: str
    number: int
    floor: int
    created: str
    expires: Optional[str]
    note: str


def parse_release(data: bytes, source: str) -> Release:
    """Parses the bytes of a release.

    Raises:
        BundleError: lists every broken rule.
    """
    problems = Problems(source)
    top = Field(problems, parse_json(data, source, MAX_RELEASE_BYTES))
    version = top.at("release_version").integer()
    if version is not None and version != RELEASE_VERSION:
        text = "is {}, this runtime knows version {}".format(version, RELEASE_VERSION)
        top.find("release_version").refuse("release-version", text)
    name = top.at("name").name()
    number = top.at("number").within(0, 2**53, "release-number")
    floor = top.at("floor").within(0, 2**53 if number is None else number, "release-number")
    text = "isn't a time such as 2026-11-30T12:00:00Z"
    created = top.at("created").formed(_TIME, "release-time", text)
    expires = top.find("expires")
    ends = expires.formed(_TIME, "release-time", text) if expires.given else None
    note = top.find("note")
    words = note.string() if note.given else ""
    problems.raise_if_any()
    return Release(name or "", number or 0, floor or 0, created or "", ends, words or "")
