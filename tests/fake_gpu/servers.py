"""A server with a GPU that isn't there: the profile that docs/targets.md shows, and its FAKE."""

from __future__ import annotations

import platform
from pathlib import Path

from edgecompile.runtime.cpu.host import architecture

#: What the fake of libcudart calls itself.
GPU = "name=FAKE H1;cc=9.0;sm=132;memory=85899345920;integrated=0;driver=13000"
PROFILE = """
name = "my-gpu"
kind = "cuda"
description = "a server with an H100"
variants = ["x86-64-v3"]  # of its cores, to fall back to
cores = 16
memory_gib = 128
glibc = "2.34"
python = "3.10"

[gpu]
compute_capability = "9.0"
sm_count = 132
clock_mhz = 1700
bandwidth_gbs = 3350
memory_gib = 80
models = ["H1"]  # one of these is part of what nvidia-smi -L says
peak_gflops = { fp32 = 67000, fp16 = 989000, int8 = 1979000 }
"""


def write_profile(folder: Path) -> Path:
    """my-gpu.toml, for this machine's architecture."""
    text = PROFILE
    if architecture(platform.machine()) == "aarch64":
        text = text.replace("x86-64-v3", "aarch64-neon")
    path = folder / "my-gpu.toml"
    path.write_text(text)
    return path
