"""Asks a process of its own: what the libraries print, and even a crash, does no harm there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ask(
    command: Sequence[str], request: Mapping[str, Any], folder: Path, **options: Any
) -> tuple[dict[str, Any], str]:
    """Runs a command with the path of a file that holds a request.

    Args:
        command: the program.
        request: JSON values; ``answer`` is added, the path of the file to write.
        folder: where the files go, and the working folder.
        options: further arguments of ``subprocess.run``.

    Returns:
        The answer, whose ``stage`` is "start" where there is none; and how the process ended, ""
        where it ended well.
    """
    question, answer = folder.resolve() / "request.json", folder.resolve() / "answer.json"
    answer.unlink(missing_ok=True)
    question.write_text(json.dumps({**request, "answer": str(answer)}), encoding="utf-8")
    ending = ""
    try:
        done = subprocess.run(
            [*command, str(question)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
            **options,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            ending = f"the process ended with {done.returncode}: {last}"
    except subprocess.TimeoutExpired as late:
        ending = f"the process was ended: it took more than {late.timeout:.0f} s"
    reply = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    return {"stage": "start", **reply}, ending
