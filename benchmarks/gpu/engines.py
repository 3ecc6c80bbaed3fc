"""The ways to run a model on a GPU that gpu.py and zoo.py time, and how they take turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.single import open_single
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import GpuError, ModeError
from edgecompile.runtime.call.inputs import make_inputs as make_arrays
from edgecompile.runtime.gpu.cuda import Cuda
from edgecompile.runtime.gpu.engines import MODES
from edgecompile.runtime.gpu.program import GpuProgram
from edgecompile.runtime.model.model import Model

Call = Callable[[], Any]
#: Runs of a process before the first one that counts; torch compiles in them.
WARMUPS = 12


@contextmanager
def captured(program: GpuProgram) -> Iterator[int]:
    """A graph of the program's last run without its copies."""
    cuda, stream = program._cuda, program._shared.stream
    cuda.begin_capture(stream)
    program._context.enqueue(stream)
    graph = cuda.end_capture(stream)
    executable = cuda.instantiate(graph)
    cuda.destroy_graph(graph)
    try:
        yield executable
    finally:
        cuda.destroy_executable(executable)


def own_engines(
    models: dict[str, Model], plain: Model, sizes: dict[str, int]
) -> tuple[dict[str, Call], Any]:
    """The bundle's ways to run at some sizes, and what closes them.

    Args:
        models: The bundle in each mode.
        plain: The bundle as :func:`open_single` opens it.
        sizes: Size of each axis.
    """
    inputs = make_arrays(plain.manifest, sizes, 7)
    engines: dict[str, Call] = {
        f"call: {mode}": lambda model=model: model.run(inputs)  # type: ignore[misc]
        for mode, model in models.items()
    }
    plain.run(inputs)
    program = plain._programs.get(plain._dispatcher.choose(sizes))
    assert isinstance(program, GpuProgram)
    cuda, stream, context = program._cuda, program._shared.stream, program._context

    def run_plain() -> None:
        context.enqueue(stream)
        cuda.synchronize(stream)

    held = captured(program)
    executable = held.__enter__()

    def run_graph() -> None:
        cuda.launch(executable, stream)
        cuda.synchronize(stream)

    engines["device: plain"], engines["device: graph"] = run_plain, run_graph
    engines["host: plain"] = lambda: context.enqueue(stream)
    engines["host: graph"] = lambda: cuda.launch(executable, stream)

    def close() -> None:
        cuda.synchronize(stream)
        held.__exit__(None, None, None)

    return engines, close


def torch_engines(
    folder: Path, autotune: bool = False
) -> Callable[[dict[str, np.ndarray]], dict[str, Call]]:
    """Gives torch's ways to run with some inputs; ``autotune`` is one of them where it is asked for."""
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    torch._dynamo.config.cache_size_limit = 64
    eager = AutoModel.from_config(AutoConfig.from_pretrained(folder)).half().cuda().eval()
    models = {
        "eager": eager,
        "compile": torch.compile(eager, dynamic=True),
        "reduce-overhead": torch.compile(eager, dynamic=False, mode="reduce-overhead"),
    }
    if autotune:
        models["max-autotune"] = torch.compile(eager, dynamic=False, mode="max-autotune")

    def engines(arrays: dict[str, np.ndarray]) -> dict[str, Call]:
        tensors = {key: torch.from_numpy(value) for key, value in arrays.items()}
        host = {key: x.half() if x.is_floating_point() else x for key, x in tensors.items()}
        here = {key: x.cuda() for key, x in host.items()}
        result: dict[str, Call] = {}
        for name, model in models.items():

            def on_device(model: Any = model) -> None:
                with torch.no_grad():
                    model(**here)
                torch.cuda.synchronize()

            def whole(model: Any = model) -> Any:
                with torch.no_grad():
                    return model(**{key: x.cuda() for key, x in host.items()})[0].cpu().numpy()

            result[f"torch device: {name}"], result[f"torch call: {name}"] = on_device, whole
        return result

    return engines


class Beside:
    """A bundle that a process of its own runs, when it is asked to."""

    def __init__(self, text: str) -> None:
        python, bundle = text.split(",")
        self.name = Path(bundle).stem
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.gpu.gpu", bundle, "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **question: Any) -> Any:
        """The process's answer to one question.

        Raises:
            GpuError: it has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise GpuError(f"{self.name} ended with {self._process.wait()}")
        return json.loads(line)

    def engines(self, sizes: dict[str, int]) -> dict[str, Call]:
        """Its ways to run; each gives the microseconds that it took."""
        return {
            f"{self.name} {name}": lambda name=name: self.ask(engine=name)  # type: ignore[misc]
            for name in self.ask(sizes=sizes)
        }

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(path: str) -> None:
    """Runs what :class:`Beside` asks for, until its input ends."""
    models, plain = open_models(path), open_single(path)
    settle, close, engines = waiting(plain), None, {}
    for line in sys.stdin:
        question = json.loads(line)
        if "sizes" in question:
            if close is not None:
                close()
            engines, close = own_engines(models, plain, question["sizes"])
            answer: Any = list(engines)
        else:
            answer = timed(engines[question["engine"]], settle)
        print(json.dumps(answer), flush=True)


def open_models(path: str) -> dict[str, Model]:
    """The bundle in each mode that it allows."""
    models = {}
    for mode in MODES:
        try:
            models[mode] = open_bundle(path, mode=mode)
        except ModeError:
            continue
    return models


def use_part(multiprocessors: int) -> None:
    """Lets bundles that are opened from now on run on a part of the GPU."""
    from benchmarks.engines.engine import make_stream

    Cuda.stream = lambda _: make_stream(multiprocessors)  # type: ignore[method-assign]


def waiting(plain: Model) -> Call:
    """A call that waits until all is done that :func:`open_single`'s programs queued."""
    shared = plain._programs._shared  # type: ignore[union-attr]
    return lambda: shared.cuda.synchronize(shared.stream)


def timed(call: Call, settle: Call) -> float:
    """Microseconds of the second of two calls: it finds the caches as it left them itself."""
    call()
    settle()
    started = time.perf_counter()
    told = call()
    taken = (time.perf_counter() - started) * 1e6
    settle()
    return told if isinstance(told, float) else taken


def take_turns(engines: dict[str, Call], rounds: int, settle: Call) -> dict[str, float]:
    """The median of each engine, in microseconds; ``settle`` waits for what is only queued."""
    for call in engines.values():
        for _ in range(WARMUPS):
            call()
        settle()
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, call in engines.items():
            times[name].append(timed(call, settle))
    return {name: round(statistics.median(taken), 1) for name, taken in times.items()}
