"""The tutorials' commands, for tests that run them one after the other."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: As many commands as a stranger types.
MOST = 12
QUERIES = ("How do I read a file line by line?", "sort a list", "Iterate over the lines of a text.")


def blocks(page: str, language: str = "sh") -> list[str]:
    """A page's blocks of shell commands, or of another language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """All commands of a page, each in one line."""
    text = re.sub(r" \\\n *", " ", "".join(blocks(page)))
    return [line for line in text.splitlines() if line]


def changed(text: str, changes: Mapping[str, str]) -> str:
    """The same with other values, all of which have to be there."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def run_commands(lines: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a script that ends with the first command that fails, which is an error; gives its stdout."""
    # A shell without job control doesn't number its jobs.
    (folder / "tutorial.sh").write_text("\n".join(["set -eux", "set -m", *lines]))
    done = subprocess.run(
        ["bash", "tutorial.sh"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout
