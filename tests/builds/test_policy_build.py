"""A bundle of a policy takes the actions of LeRobot's own select_action, for whole episodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import need_variable

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "policy", ["act", pytest.param("diffusion", marks=pytest.mark.exhaustive), "smolvla"]
)
def test_episodes_are_those_of_lerobot(policy: str, tmp_path: Path) -> None:
    packages, bundle = need_variable("EDGECOMPILE_LEROBOT"), tmp_path / "policy.ecb"
    example = [
        sys.executable,
        ROOT / "tests" / "with_lerobot.py",
        ROOT / "examples" / "robot_policy" / "run.py",
        *("--policy", policy, "--output", bundle, "--steps", "200", "--robots", "3"),
        *("--target", "cpu-x86-64-v3"),
    ]
    done = subprocess.run(
        example,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), packages])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    difference = re.search(r"200 steps: at most (\S+) from LeRobot's actions", done.stdout)
    assert difference is not None, done.stdout
    assert float(difference[1]) < 1e-5
