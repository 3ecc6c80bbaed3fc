"""The wheels, and commands of a page that are run from them in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.project.tutorials import run_commands

REPOSITORY = Path(__file__).resolve().parents[2]


def build_wheels(folder: Path) -> Path:
    """Builds the three wheels as ``.ci/run wheels`` does, but fetches nothing; gives their folder."""
    source, dist = folder / "source", folder / "dist"
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    for name in tracked.stdout.splitlines():
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(dist), str(source)], check=True)
    (wheel,) = dist.glob("edgecompile-*.whl")
    run = source / "scripts"
    subprocess.run([sys.executable, str(run / "prebuild"), str(wheel)], check=True)
    for arguments in ([], ["--server"]):
        command = [sys.executable, str(run / "build-runtime-wheel"), "--output", str(dist)]
        subprocess.run([*command, *arguments], check=True)
    return dist


def run_from_wheels(
    commands: Sequence[str], folder: Path, dist: Path, environment: Mapping[str, str] = {}
) -> str:
    """Runs shell commands in a folder. What they install comes from ``dist``, everything else is there already.

    Args:
        commands: Commands in their order.
        folder: Folder to run them in.
        dist: Folder of the wheels.
        environment: Variables beside this process's own.

    Returns:
        What they printed; a command that fails is an error.
    """
    shown = sysconfig.get_path("purelib")
    seen = "import sysconfig; print(sysconfig.get_path('purelib'))"
    lines = list(commands)
    for index, line in enumerate(lines):
        if match := re.match(r"((?:\S*/)?)pip install ", line):
            python = f"{match[1]}python"
            lines[index] = (
                f'echo {shown} > "$({python} -c "{seen}")/tests.pth"\n'
                f"{python} -m pip install --quiet --no-index --no-deps --force-reinstall {dist}/edgecompile-*.whl"
            )
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return run_commands(lines, folder, {**kept, **environment})
