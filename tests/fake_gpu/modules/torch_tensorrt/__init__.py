"""A FAKE of torch-tensorrt, for tests on machines without a GPU. Nothing here is torch-tensorrt.

It takes what the real one takes, refuses what that refuses, and gives an engine of the FAKE TensorRT.
By FAKE_TORCH_TENSORRT, several with commas:

    old         as releases before autocast: TensorRT chooses among enabled precisions
    typed-only  a release that can't be told of precisions at all
    profiles    Input takes several profiles
    broken      it can't be imported
    silent      it gives nothing back
    raises      it logs why it failed, and raises something else
    one         several profiles are taken by Input and then not built
"""

from __future__ import annotations

import os

from . import dynamo
from .inputs import Input

if "broken" in os.environ.get("FAKE_TORCH_TENSORRT", "").split(","):
    raise OSError("libtorchtrt.so: undefined symbol (a fake failure)")

__version__ = "2.13.9"
__all__ = ["Input", "dynamo"]
