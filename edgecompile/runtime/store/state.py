"""The state of a model in a store: which version runs, which one ran before, and what a trial has left."""

import json
import re
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from ..base.errors import ExpiredReleaseError, RefusedReleaseError, StoreError
from ..format.document import SHA256, Field, Problems, parse_json
from ..format.manifest.schema import NOTHING

STORE_FOLDER = "/var/lib/edgecompile"
STATE_VERSION = 1
MAX_STATE_BYTES = 1 << 20
#: A version that isn't confirmed by then is taken back.
TRIAL_STARTS = 3
_ID = re.compile(r"[0-9a-f]{16}(-[0-9]{1,16})?")


class Version(NamedTuple):
    """An installed version.

    Attributes:
        sha256: hex SHA-256 of its manifest.
        release: number of its release, -1 without one.
        floor: least number that the device takes once this one is confirmed.
        created: time of the release, such as 2026-11-30T12:00:00Z; "" without one.
    """

    sha256: str
    release: int
    floor: int
    created: str

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self.sha256[:16] + ("" if self.release < 0 else "-{}".format(self.release))

    def __str__(self) -> str:
        return "no release" if self.release < 0 else "release {}".format(self.release)


class State(NamedTuple):
    """The state; each change gives a new one.

    Attributes:
        current: id of the version that is served; None: none was installed.
        previous: id of the version that a rollback returns to.
        starts_left: starts that the version on trial has left; None: there is no trial.
        floor: least number of a release that is taken.
        seen: latest ``created`` of all confirmed releases; the clock isn't earlier.
        versions: the installed versions by id.
        refused: ids of versions that were taken back.
    """

    current: Optional[str] = None
    previous: Optional[str] = None
    starts_left: Optional[int] = None
    floor: int = 0
    seen: str = ""
    versions: Mapping[str, Version] = NOTHING
    refused: Tuple[str, ...] = ()

    @property
    def running(self) -> Version:
        """The version that is served.

        Raises:
            StoreError: there is none.
        """
        if self.current is None:
            raise StoreError(
                "no version is installed", "python -m edgecompile.runtime install BUNDLE"
            )
        return self.versions[self.current]

    def check(self, version: Version, expires: Optional[str] = None) -> None:
        """Checks that a version may be served.

        Args:
            version: the version.
            expires: time at which its release expires, where the device heeds that.

        Raises:
            RefusedReleaseError: it was taken back, is below the floor, or its number is another content's.
            ExpiredReleaseError: a release that was made later than it expires is known.
        """
        if version.id in self.refused:
            text = "{} ({}): was taken back here before [store-refused]"
            hint = "sign the bundle again as a release of a higher number"
            raise RefusedReleaseError(text.format(version.id, version), hint)
        if self.floor and version.release < self.floor:
            text = "{}: is {}, must be {} or later [store-floor]"
            raise RefusedReleaseError(text.format(version.id, version, self.floor))
        for other in self.versions.values():
            if other.release == version.release >= 0 and other.sha256 != version.sha256:
                text = "{}: is {}, as another bundle that is installed: {} [store-number]"
                raise RefusedReleaseError(text.format(version.id, version, other.id))
        if expires is not None and expires <= self.seen:
            text = "{}: {} expired at {}, and a release of {} ran here [store-expired]"
            raise ExpiredReleaseError(text.format(version.id, version, expires, self.seen))

    def tried(self, version: Version) -> "State":
        """With a version on trial. One that replaces another on trial falls back to what that one would have."""
        if self.current == version.id:
            return self
        versions = {**self.versions, version.id: version}
        previous: Optional[str] = self.current
        starts: Optional[int] = TRIAL_STARTS
        if self.starts_left is not None and self.previous is not None:
            previous = self.previous
        if previous == version.id:  # it was confirmed before
            previous = starts = None
        return self._replace(
            current=version.id, previous=previous, starts_left=starts, versions=versions
        )

    def started(self) -> "State":
        """After the service was started: a trial has one start less, and without any the version is taken back.

        A model's first version stays: nothing could be served in its place.
        """
        if self.starts_left is None:
            return self
        if self.starts_left:
            return self._replace(starts_left=self.starts_left - 1)
        return self if self.previous is None else self.rolled_back()

    def confirmed(self) -> "State":
        """With the trial over and the floor raised.

        Raises:
            StoreError: the version on trial was never started, so nothing can have found it good.
        """
        version = self.running
        if self.starts_left is None:
            return self
        if self.starts_left == TRIAL_STARTS:
            text = "{}: was never started, so it can't be confirmed [store-trial]"
            hint = "let the service call `start` before it opens the bundle"
            raise StoreError(text.format(version.id), hint)
        floor, seen = max(self.floor, version.floor), max(self.seen, version.created)
        return self._replace(starts_left=None, floor=floor, seen=seen)

    def rolled_back(self) -> "State":
        """With the previous version in place of the current one, which is refused from then on.

        Raises:
            StoreError: there is none.
            RefusedReleaseError: it is below the floor.
        """
        version = self.running
        if self.previous is None:
            text = "{}: there is no version to return to [store-previous]"
            raise StoreError(text.format(version.id))
        self.check(self.versions[self.previous])
        refused = (*self.refused, version.id)
        return self._replace(
            current=self.previous, previous=None, starts_left=None, refused=refused
        )

    def without(self, dropped: "Tuple[str, ...]") -> "State":
        """Without versions that are neither current nor previous."""
        kept = {name: item for name, item in self.versions.items() if name not in dropped}
        return self._replace(versions=kept)

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values."""
        versions = {name: item._asdict() for name, item in self.versions.items()}
        return {**self._asdict(), "refused": list(self.refused), "versions": versions}


def format_state(state: State) -> bytes:
    """The bytes of ``state.json``."""
    document = {"state_version": STATE_VERSION, **state.to_json()}
    return json.dumps(document, indent=1, allow_nan=False).encode("ascii") + b"\n"


def parse_state(data: bytes, source: str) -> State:
    """Parses ``state.json``.

    Raises:
        BundleError: lists every broken rule.
    """
    problems = Problems(source)
    top = Field(problems, parse_json(data, source, MAX_STATE_BYTES))
    number = top.at("state_version").integer()
    if number is not None and number != STATE_VERSION:
        top.find("state_version").refuse("store-state", "isn't {}".format(STATE_VERSION))
    versions: Dict[str, Version] = {}
    for name, entry in top.at("versions").members():
        version = Version(
            entry.at("sha256").formed(SHA256, "store-state", "isn't a SHA-256") or "",
            _number(entry.at("release"), -1),
            _number(entry.at("floor"), 0),
            entry.at("created").string() or "",
        )
        if version.id != name:
            entry.refuse("store-state", "isn't of the version {}".format(version.id))
        versions[name] = version
    left = top.at("starts_left")
    state = State(
        _installed(top.at("current"), versions),
        _installed(top.at("previous"), versions),
        _number(left, 0, TRIAL_STARTS) if left.given else None,
        _number(top.at("floor"), 0),
        top.at("seen").string() or "",
        versions,
        top.at("refused").strings(0, 1 << 16),
    )
    for refused in state.refused:
        if not _ID.fullmatch(refused):
            top.find("refused").refuse("store-state", "has what is no version's id")
    problems.raise_if_any()
    return state


def _number(field: Field, least: int, most: int = 2**53) -> int:
    value = field.within(least, most, "store-state")
    return least if value is None else value


def _installed(field: Field, versions: Mapping[str, Version]) -> Optional[str]:
    name = field.string() if field.given else None
    if name is not None and name not in versions:
        field.refuse("store-state", "isn't among the versions")
    return name
