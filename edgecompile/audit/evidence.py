"""Evidence of instructions, found once for all libraries of the same content.

Each build judges the same runtime libraries again, and the listing of one has 150,000 lines. So their evidence is
kept in the user's cache, beside the objects that they are linked from. A file that can't be read counts as none, and so
does each file in a folder that others can write: they could plant evidence of nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from edgecompile.audit import elf, instructions
from edgecompile.audit.instructions import FeatureUse, InstructionEvidence, scan_instructions
from edgecompile.files import file_sha256, write_json
from edgecompile.toolchain.compilers import cache_directory

#: Evidence of this process, by the same keys as the files.
_seen: dict[str, InstructionEvidence] = {}
_MOST_SEEN = 64

#: Least size in bytes of a library whose evidence gets a file: smaller ones are a program's own, and soon read.
_LEAST_KEPT = 1 << 19


def find_evidence(library: Path, arch: str, objdump: str) -> InstructionEvidence:
    """The evidence in a library's instructions.

    Raises:
        ElfError: objdump can't be run, or can't read the library.
        OSError: the library can't be read.
    """
    parts = (file_sha256(library), arch, objdump, _version(objdump), _sources())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    if key not in _seen:
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        kept = library.stat().st_size >= _LEAST_KEPT
        evidence = _read(key) if kept else None
        if evidence is None:
            evidence = scan_instructions(library, arch, objdump)
            if kept:
                _write(key, evidence)
        _seen[key] = evidence
    return _seen[key]


@cache
def _version(objdump: str) -> str:
    """The whole text of ``--version``, empty where the program can't be run."""
    try:
        return subprocess.run([objdump, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return ""


@cache
def _sources() -> str:
    """Identifies the code that finds evidence."""
    return " ".join(file_sha256(Path(str(module.__file__))) for module in (elf, instructions))


def _folder() -> Path:
    return cache_directory() / "instructions"


def _read(key: str) -> InstructionEvidence | None:
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        document: dict[str, Any] = json.loads(_read_own(f"{key}.json"))
        if document["key"] == key:
            uses = tuple(FeatureUse(**use) for use in document["uses"])
            arithmetic = {int(width): count for width, count in document["arithmetic"].items()}
            return InstructionEvidence(int(document["total"]), uses, arithmetic)
    return None


def _read_own(name: str) -> bytes:
    """The bytes of a file in the folder; raises OSError unless only this user can write there."""
    opening = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    folder = os.open(_folder(), opening | os.O_DIRECTORY)
    try:
        info = os.fstat(folder)
        if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError
        with open(os.open(name, opening | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
            return file.read()
    finally:
        os.close(folder)


def _write(key: str, evidence: InstructionEvidence) -> None:
    """Keeps evidence; where the cache can't be written, nothing is kept."""
    with suppress(OSError):
        cache_directory().mkdir(parents=True, exist_ok=True)
        _folder().mkdir(mode=0o700, exist_ok=True)
        write_json(_folder() / f"{key}.json", {"key": key, **evidence.to_json()})
