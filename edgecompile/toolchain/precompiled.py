"""Precompiled headers: what most of the compiler's time goes to for a small program.

torch's headers take g++ some three seconds in each of a program's two large files, whatever stands
below them. Precompiled they cost next to nothing, but making them takes as long as two or three
programs, and they take over 100 MB each, so they are made only where ``$EDGECOMPILE_PRECOMPILED`` is
1: on machines that build many programs. The native runtime's sources
share those of C++ itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgecompile.toolchain.locks import alone

VARIABLE = "EDGECOMPILE_PRECOMPILED"
_HEADER = "all.h"
#: Seconds after which a header that no build took is removed: each change of its content or the options makes another.
_KEPT = 7 * 24 * 3600


def headers_wanted() -> bool:
    """Whether the environment asks for precompiled headers."""
    return os.environ.get(VARIABLE) == "1"


def precompile(cache: Path, command: Sequence[str], includes: str, headers_id: str) -> Path:
    """The header to put before a source with ``-include``; made first, if it isn't there.

    Where it can't be made (a full disk, a compiler without them) the header is read as it is, which
    takes longer and gives the same.

    Args:
        cache: the cache, which gets a folder for each header.
        command: the compiler with all options that the source is compiled with.
        includes: the header's text.
        headers_id: the id of the content of the files that it includes.

    Raises:
        OSError: the cache can't be written.
    """
    text = "\0".join([*command, includes, headers_id])
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    folder = cache / "headers" / key
    header = folder / _HEADER
    folder.mkdir(parents=True, exist_ok=True)
    # One process makes it, others wait: together they would take longer and more memory.
    with alone(folder / "lock"):
        if not header.is_file():
            _remove_old(folder.parent)
            _write(header, command, includes)
    with suppress(OSError):
        os.utime(header)
    return header


def _remove_old(folders: Path) -> None:
    for header in folders.glob(f"*/{_HEADER}"):
        with suppress(OSError):  # another process removed it
            if header.stat().st_mtime < time.time() - _KEPT:
                shutil.rmtree(header.parent, ignore_errors=True)


def _write(header: Path, command: Sequence[str], includes: str) -> None:
    # A name of its own: where files have no locks, another thread may be making the same.
    scratch = header.with_name(f"{uuid.uuid4().hex}.partial")
    scratch.mkdir()
    try:
        source = scratch / _HEADER
        source.write_text(includes)
        output = scratch / f"{_HEADER}.gch"
        run = [*command, "-x", "c++-header", str(source), "-o", str(output)]
        environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
        done = subprocess.run(run, capture_output=True, env=environment)
        if done.returncode == 0:
            os.replace(output, header.with_name(output.name))
        # Last: its presence says that all has been tried.
        os.replace(source, header)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
