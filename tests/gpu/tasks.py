"""The work of a process of the check on a GPU: the whole check, a probe, or a fault on purpose."""

from __future__ import annotations

import glob
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from edgecompile.runtime.errors import GpuError, GpuUnavailableError
from edgecompile.runtime.gpu.cuda import Cuda
from edgecompile.runtime.gpu.engines import DEFAULT
from edgecompile.runtime.gpu.programs import GpuPrograms
from tests.gpu.encoder import WORDS, make_encoder, make_manifest
from tests.gpu.programs import prepare_kind
from tests.gpu.stages import Check, Settings
from tests.gpu.torch_engine import CudaMemory, FakeMemory, TorchEngine


def find_libcudart() -> None:
    """Names torch's own libcudart, where nothing else finds one."""
    if os.environ.get("EDGECOMPILE_CUDART"):
        return
    try:
        Cuda.load()
        return
    except GpuUnavailableError:
        pass
    packages = Path(torch.__file__).parent.parent
    places = [f"{packages}/nvidia/*/lib", f"{packages}/torch/lib", "/usr/local/cuda*/lib64"]
    for place in places:
        for path in sorted(glob.glob(place + "/libcudart.so.*")):
            os.environ["EDGECOMPILE_CUDART"] = path
            return


def check(settings: Settings, output: Path) -> dict[str, Any]:
    """See ``stages``."""
    prepare_kind(settings.kind, Path(settings.folder))
    check = Check(settings, output)
    check.report["torch"] = torch.__version__
    check.report["torch_cuda"] = torch.version.cuda
    return check.run()


def _guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"ok": True, **work()}
    except BaseException as error:
        lines = traceback.format_exc().strip().split("\n")
        return {
            "ok": False,
            "error": f"{type(error).__name__}: {error}"[:2000],
            "lines": lines[-30:],
        }


def probe(settings: Settings, output: Path) -> dict[str, Any]:
    """Whether torch can make, run and capture the model: with its own graphs, none of ours."""

    def work() -> dict[str, Any]:
        device = "cpu" if settings.fake else "cuda"
        s = settings
        model = make_encoder(s.model, s.width, s.layers, s.heads, device)
        inputs = [torch.ones((1, s.edges[0]), dtype=torch.int64, device=device) for _ in range(2)]
        with torch.no_grad():
            for _ in range(3):
                eager = model(*inputs)
            if s.fake:
                return {}
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                replayed = model(*inputs)
            graph.replay()
            torch.cuda.synchronize()
        error = max(float((a - b).abs().max()) for a, b in zip(eager, replayed, strict=True))
        return {"max_abs_error": error}

    return _guarded(work)


def sticky(settings: Settings, output: Path) -> dict[str, Any]:
    """After a kernel that goes out of bounds every run is refused, and closing is quiet."""

    def work() -> dict[str, Any]:
        s = settings
        cuda = Cuda.load()
        device = "cpu" if s.fake else "cuda"
        precision = "fp32" if s.fake else "fp16"
        memory: CudaMemory | FakeMemory = CudaMemory()
        if s.fake:
            import ctypes

            memory = FakeMemory(ctypes.CDLL(cuda.path))
        model = make_encoder(s.model, s.width, 1, s.heads, device)
        manifest = make_manifest(list(s.edges), s.width, "exact", precision)
        engine = TorchEngine([model] * len(s.edges), manifest, memory, "torch")
        programs = GpuPrograms(cuda, engine, manifest, range(len(s.edges)), DEFAULT)
        shape = (1, s.edges[0])
        ones = torch.ones(shape, dtype=torch.int64).numpy()
        programs.get(0).run([ones, ones])
        messages = []
        # No check stands between these indices and the table of WORDS words.
        for ids in (ones * (WORDS + 10**6), ones):
            try:
                programs.get(0).run([ids, ones])
            except GpuError as error:
                messages.append([error.name, error.number, error.sticky, error.message[:500]])
        programs.close()
        assert len(messages) == 2, messages
        assert all(item[2] for item in messages), messages
        assert "nothing runs on this GPU in this process any more" in messages[1][3], messages
        return {"messages": messages}

    return _guarded(work)
