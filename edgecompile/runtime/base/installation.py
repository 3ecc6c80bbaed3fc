"""The installed packages of edgecompile, which must be of one version."""

import os
import re
from typing import Any, Mapping, Optional, Tuple

from ... import __version__
from .errors import MixedWheelsError

_PACKAGE = re.compile(r"(edgecompile(?:_runtime|_server)?)-([^-]+)\.dist-info")
_BUILDER = "edgecompile"


def refuse_mixed_wheels(folder: Optional[str] = None) -> None:
    """Refuses wheels of different versions in the folder that this package is in.

    The wheel edgecompile has the files of the other two, so pip overwrites them without a word.

    Args:
        folder: Folder to look at instead.

    Raises:
        MixedWheelsError: Their versions differ.
    """
    if folder is None:
        folder = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    try:
        names = os.listdir(folder)
    except OSError:  # an archive, or a folder that may be passed through only
        return
    found = {
        match.group(1).replace("_", "-"): match.group(2)
        for match in map(_PACKAGE.fullmatch, names)
        if match
    }
    if len(set(found.values())) < 2:
        return
    text = " and ".join("{} {}".format(*item) for item in sorted(found.items()))
    if _BUILDER in found:
        others = " ".join(sorted(set(found) - {_BUILDER}))
        cure = "pip uninstall --yes {}; pip install --force-reinstall --no-deps edgecompile=={}"
        hint = cure.format(others, found[_BUILDER])
        raise MixedWheelsError(text + " are installed over each other", hint)
    newest = max(found.values(), key=_numbers)
    items = " ".join("{}=={}".format(name, newest) for name in sorted(found))
    raise MixedWheelsError(text + " don't go together", "pip install " + items)


def newer_bundle_hint(built_by: Any) -> Optional[str]:
    """The cure where a newer edgecompile built a bundle; None where it isn't newer.

    Args:
        built_by: Value of the manifest's key, which may be anything.
    """
    version = built_by.get("edgecompile") if isinstance(built_by, Mapping) else None
    if not isinstance(version, str) or _numbers(version) <= _numbers(__version__):
        return None
    return (
        "edgecompile {} built it and this runtime is {}: pip install --upgrade edgecompile-runtime, or "
        "python3 NAME.ecb COMMAND, which uses the bundle's own runtime"
    ).format(re.sub(r"[^\w.+!-]", "?", version[:40]), __version__)


def _numbers(version: str) -> Tuple[int, ...]:
    """The leading numbers of a version."""
    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
