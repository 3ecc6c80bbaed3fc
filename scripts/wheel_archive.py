"""Writes the archive of a wheel: the same files give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

# Zip's first day: a time in the archive would make two builds differ.
EPOCH = (1980, 1, 1, 0, 0, 0)


def write_archive(
    target: Path, files: Iterable[tuple[str, bytes]], record: str, compression: int
) -> None:
    """Writes a wheel, whole or not at all.

    Args:
        target: Path of the wheel.
        files: Name in the wheel and content of each file but RECORD.
        record: Name of RECORD in the wheel.
        compression: Method of :mod:`zipfile`.
    """
    files, lines = list(files), []
    for name, content in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files.append((record, ("".join(lines) + f"{record},,\n").encode()))

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".wheel-", delete=False) as draft:
        try:
            with zipfile.ZipFile(draft, "w", compression) as archive:
                for name, content in files:
                    entry = zipfile.ZipInfo(name, EPOCH)
                    entry.compress_type = compression
                    entry.external_attr = 0o100644 << 16
                    entry.create_system = 3
                    archive.writestr(entry, content)
            draft.close()
            os.chmod(draft.name, 0o644)
            os.replace(draft.name, target)
        except BaseException:
            os.unlink(draft.name)
            raise
