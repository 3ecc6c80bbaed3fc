"""Where profiles lie, and how their files are read."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from edgecompile.errors import TargetError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PROFILES_VARIABLE", "read_toml", "search_path"]

PROFILES_VARIABLE = "EDGECOMPILE_PROFILES"


def search_path() -> tuple[Path, ...]:
    """The folders in which names are looked up, in order: that of the environment variable
    EDGECOMPILE_PROFILES, the packaged profiles, and the source tree's ``profiles/``.

    Raises:
        TargetError: the variable names no folder.
    """
    folders = []
    chosen = os.environ.get(PROFILES_VARIABLE)
    if chosen:
        if not Path(chosen).is_dir():
            raise TargetError(
                f"{PROFILES_VARIABLE}={chosen} is not a folder",
                hint=f"set it to a folder of profiles (*.toml), or unset {PROFILES_VARIABLE}",
            )
        folders.append(Path(chosen))
    package = Path(__file__).resolve().parents[1]
    # The second exists in a source tree and in editable installs of it only.
    shipped = (package / "_profiles", package.parent / "profiles")
    folders += [folder for folder in shipped if folder.is_dir()]
    return tuple(folders)


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a file.

    Raises:
        TargetError: it is missing, unreadable or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(
            f"there is no profile {path}", hint="`edgecompile targets list` names the known ones"
        ) from None
    except OSError as error:
        raise TargetError(f"can't read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} is not valid TOML: {error}") from error
