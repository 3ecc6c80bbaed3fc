"""Programs that start a Ray cluster of this machine, run by the Python of Ray's environment."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from tests.needs import need_variable

REPOSITORY = Path(__file__).resolve().parents[1]


def run_on_ray(program: Path, argument: Path, *, folder: Path, torch: bool = False) -> Any:
    """What a program found: the JSON behind "found " of its standard output, where Ray says things of its own.

    Args:
        program: a file of the tests.
        argument: its only one.
        folder: where it runs.
        torch: whether it sees this environment's packages, as Ray's has no torch.
    """
    python = need_variable("EDGECOMPILE_RAY_PYTHON")
    paths = [str(REPOSITORY), *([sysconfig.get_path("purelib")] if torch else [])]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Its proxy has five seconds to start; on busy CPUs it took longer, was killed, and nothing began.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    }
    done = subprocess.run(
        [python, str(program), str(argument)],
        env=variables, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    return json.loads(line.removeprefix("found "))
