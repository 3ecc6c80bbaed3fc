"""Runs a script where LeRobot can be imported: with_lerobot.py SCRIPT ARGUMENTS.

torchvision from PyPI has no operators beside a torch for CPUs alone; LeRobot's policies call none of them.
"""

import runpy
import sys
from pathlib import Path

import torch


def declare_operators() -> None:
    """Declares the operators that torchvision asks for when it is imported, if it hasn't its own."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


if __name__ == "__main__":
    declare_operators()
    script, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
