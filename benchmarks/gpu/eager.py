"""Runs a model in eager PyTorch on the inputs of golden vectors, in float32 and float16; scripts/gpu-check calls it.

python -m benchmarks.gpu.eager MODEL FOLDER GOLDEN.npz...

MODEL is what `edgecompile build` takes. Writes FOLDER/NAME-fp32.npz and NAME-fp16.npz, which have the outputs by name, floats as
float32. Computes on the GPU where torch has one, else on the CPU. Float32 is computed without TF32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from edgecompile.loaders.load import load_model


def main(spec: str, folder: Path, goldens: list[Path]) -> None:
    """All of them in one type, then in the other."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(torch.__version__, torch.cuda.get_device_name() if device.type == "cuda" else "cpu")
    model = load_model(spec)
    for kind, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
        model.module.to(device, dtype)
        for path in goldens:
            with np.load(path, allow_pickle=False) as arrays:
                tensors = {
                    key[3:]: torch.from_numpy(arrays[key]).to(device)
                    for key in arrays.files
                    if key.startswith("in.")
                }
            inputs = {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}
            with torch.no_grad():
                outputs = model.run(inputs)
            made = {k: t.float() if t.is_floating_point() else t for k, t in outputs.items()}
            written = {k: t.cpu().numpy() for k, t in made.items()}
            np.savez(folder / f"{path.stem}-{kind}.npz", **written)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
