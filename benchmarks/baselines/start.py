"""How the processes of these baselines are started."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["REPOSITORY", "worker_command"]

REPOSITORY = Path(__file__).resolve().parents[2]


def worker_command(module: str, python: str = sys.executable) -> tuple[str, ...]:
    """The command of a module in ``workers/``; the repository has to be on its path."""
    return (python, "-m", f"benchmarks.baselines.workers.{module}")
