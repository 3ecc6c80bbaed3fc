"""The trust folder of a device: public keys, and which of them a model needs."""

import os
import re
import stat
from typing import TYPE_CHECKING, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

from ...base.errors import BundleError, InputError, UntrustedBundleError
from ..document import SHA256, Field, Problems, parse_json, shorten
from .keys import MAX_KEY_BYTES, PublicKey, parse_public_key

if TYPE_CHECKING:
    from ..output import Path

#: Signatures are required for every bundle where this exists.
SYSTEM_FOLDER = "/etc/edgecompile/trust"
TRUST_VARIABLE = "EDGECOMPILE_TRUST"
#: The variable's value for no folder.
OFF = "off"
POLICY_NAME = "policy.json"
POLICY_VERSION = 1
MAX_POLICY_BYTES = 1 << 20
MAX_KEYS = 64
_KEY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_PATTERN = re.compile(r"[A-Za-z0-9_.:+-]{0,200}\*?")
#: Whoever must be the only writer of a trust folder or a store.
OWNER_HINT = "only root, or this user, may be able to write it: chmod go-w, and chown"


class ModelRule(NamedTuple):
    """The keys that may sign a model, how many of them have to, and the least release, 0 for any."""

    keys: Tuple[str, ...]
    threshold: int
    floor: int


class Policy(NamedTuple):
    """A trust folder as it was read.

    Attributes:
        path: the folder.
        keys: every key by its name, without the refused ones.
        models: rule by the name of a model, or by its beginning and an asterisk.
        expires: whether a release's expiry counts.
        refused: SHA-256 of manifests that aren't opened, and names of keys.
        refused_hints: name of each refused key, by its hint.
        locked: whether callers can't choose another folder, or none.
    """

    path: str
    keys: Dict[str, PublicKey]
    models: Dict[str, ModelRule]
    expires: bool
    refused: FrozenSet[str]
    refused_hints: Dict[str, str]
    locked: bool

    def find_rule(self, name: str) -> Optional[ModelRule]:
        """The rule of a model: by its name, else by the longest beginning of it."""
        fitting = [key for key in self.models if key[-1:] == "*" and name.startswith(key[:-1])]
        best = name if name in self.models else max(fitting, key=len, default=None)
        return None if best is None else self.models[best]


def find_policy(trust: "Union[bool, Path, None]" = None) -> Optional[Policy]:
    """The policy that holds for a caller; None: signatures aren't checked.

    Args:
        trust: the trust folder; None: the one that EDGECOMPILE_TRUST names, or the system's where it
            exists; False: none. A locked system's folder holds in any case.

    Raises:
        UntrustedBundleError: the folder can't be trusted or read.
        InputError: ``trust`` is something else.
    """
    system = read_policy(SYSTEM_FOLDER) if _exists(SYSTEM_FOLDER) else None
    path: Optional[str] = None
    if trust is None:
        path = os.environ.get(TRUST_VARIABLE)
        if not path:
            return system
        path = None if path == OFF else path
    elif trust is not False:
        try:
            path = os.fsdecode(trust)  # type: ignore[arg-type]
        except TypeError:
            text = "trust is {!r}, must be the path of a folder, None or False"
            raise InputError(text.format(trust)) from None
    if system is not None and system.locked:
        return system
    return None if path is None else read_policy(path)


def trust_environment() -> Dict[str, str]:
    """EDGECOMPILE_TRUST for a process that runs in another folder; empty where it isn't set."""
    path = os.environ.get(TRUST_VARIABLE)
    if not path:
        return {}
    return {TRUST_VARIABLE: path if path == OFF else os.path.abspath(path)}


def _exists(path: str) -> bool:
    """Whether there is anything; what can't be looked at counts as there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def read_policy(path: str) -> Policy:
    """Reads a trust folder.

    Raises:
        UntrustedBundleError: it is missing, writable by others or malformed.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except (OSError, ValueError) as error:
        raise _refused(
            "trust-folder", shorten(path, 1024), "can't be opened: {}".format(error)
        ) from None
    try:
        _check_owner(fd, path)
        return _read(fd, path)
    finally:
        os.close(fd)


def _read(fd: int, path: str) -> Policy:
    source = os.path.join(path, POLICY_NAME)
    data = _read_file(fd, path, POLICY_NAME, MAX_POLICY_BYTES, "trust-policy")
    try:
        document = parse_json(data, source, MAX_POLICY_BYTES)
    except BundleError as error:
        raise UntrustedBundleError(error.message) from None
    problems = Problems(source)
    top = Field(problems, document)
    _refuse_others(top, "policy_version", "models", "expiry", "refused", "locked")
    version = top.at("policy_version").integer()
    if version is not None and version != POLICY_VERSION:
        top.find("policy_version").refuse("trust-policy", "isn't {}".format(POLICY_VERSION))
    models = dict(_read_rules(top.at("models")))
    names = sorted({name for rule in models.values() for name in rule.keys})
    entries = top.find("refused")
    refused = entries.strings(0, 4096) if entries.given else ()
    for item in refused:
        if item not in names and not SHA256.fullmatch(item):
            text = "{!r} is neither a key of a model nor 64 lower-case hex digits"
            entries.refuse("trust-policy", text.format(shorten(item)))
    expiry = top.find("expiry")
    expires = expiry.given and expiry.choice(("enforce", "ignore"), "trust-policy") == "enforce"
    locked = top.find("locked")
    is_locked = bool(locked.boolean()) if locked.given else False
    problems.raise_if_any(UntrustedBundleError)
    keys: Dict[str, PublicKey] = {}
    for name in names:
        key = parse_public_key(_read_file(fd, path, name + ".pem", MAX_KEY_BYTES, "trust-key"))
        if key is None:
            place = os.path.join(path, name + ".pem")
            raise _refused("trust-key", place, "isn't a public key of P-256, P-384 or P-521 in PEM")
        keys[name] = key
    for pattern, rule in models.items():
        distinct = len({keys[name].der for name in rule.keys})
        if rule.threshold > distinct:
            text = "models.{}: {} distinct keys, of which {} have to sign"
            text = text.format(shorten(pattern), distinct, rule.threshold)
            raise _refused("trust-policy", source, text)
    # A key may have several names: it is refused under each.
    hints = {key.hint: name for name, key in keys.items() if name in refused}
    kept = {name: key for name, key in keys.items() if key.hint not in hints}
    return Policy(path, kept, models, expires, frozenset(refused), hints, is_locked)


def _read_rules(entries: Field) -> "List[Tuple[str, ModelRule]]":
    rules = []
    for pattern, entry in entries.members(1, 256):
        if not pattern or not _PATTERN.fullmatch(pattern):
            entry.refuse("trust-policy", "isn't a model's name, or the beginning of one and *")
        entry = entry.object()
        if not entry:
            continue
        _refuse_others(entry, "keys", "threshold", "floor")
        keys = entry.at("keys").strings(1, MAX_KEYS)
        for name in keys:
            if not _KEY_NAME.fullmatch(name):
                entry.refuse("trust-policy", "{!r} isn't the name of a key".format(shorten(name)))
        threshold = entry.at("threshold").within(1, MAX_KEYS, "trust-policy")
        floor = entry.find("floor")
        least = floor.within(0, 2**53, "trust-policy") if floor.given else 0
        rules.append((pattern, ModelRule(keys, threshold or 0, least or 0)))
    return rules


def _refuse_others(field: Field, *known: str) -> None:
    """A policy of a later version mustn't be followed in part."""
    for key, value in field.members():
        if key not in known:
            value.refuse("trust-policy", "isn't a key of a policy")


def _read_file(fd: int, folder: str, name: str, limit: int, rule: str) -> bytes:
    place = os.path.join(folder, name)
    try:
        # Links are followed: such a folder may be a mounted secret.
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=fd)
    except OSError as error:
        text = "can't be opened: {}".format(error.strerror)
        raise _refused(rule, place, text) from None
    try:
        _check_owner(file, place)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _refused(rule, place, "isn't a regular file")
        with os.fdopen(os.dup(file), "rb") as stream:
            data: bytes = stream.read(limit + 1)
    finally:
        os.close(file)
    if len(data) > limit:
        raise _refused(rule, place, "has more than {} bytes".format(limit))
    return data


def _check_owner(fd: int, path: str) -> None:
    info = os.fstat(fd)
    # The mode says nothing on a read-only mount: the folder of a Kubernetes secret has 1777.
    writable = info.st_mode & 0o022 and not os.fstatvfs(fd).f_flag & os.ST_RDONLY
    if info.st_uid not in (0, os.geteuid()) or writable:
        raise _refused("trust-folder", path, describe_owner(info), OWNER_HINT)


def describe_owner(info: os.stat_result) -> str:
    """The reason why a folder or a file can't be trusted."""
    text = "belongs to user {}, mode {:o}: others may change it"
    return text.format(info.st_uid, stat.S_IMODE(info.st_mode))


def _refused(rule: str, place: str, text: str, hint: Optional[str] = None) -> UntrustedBundleError:
    return UntrustedBundleError("{}: {} [{}]".format(place, text, rule), hint)
