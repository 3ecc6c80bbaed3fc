"""The stages of the check on a GPU, each on its own: what fails is recorded, and the rest goes on."""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgecompile.runtime.call.dispatch import Dispatcher
from edgecompile.runtime.call.inputs import InputChecker, make_inputs
from edgecompile.runtime.call.results import ResultMaker
from edgecompile.runtime.errors import GpuError
from edgecompile.runtime.format.compare import compare_arrays
from edgecompile.runtime.format.schema import Manifest
from edgecompile.runtime.gpu.cuda import Cuda
from edgecompile.runtime.gpu.engines import DEFAULT, REDUCE_OVERHEAD
from edgecompile.runtime.gpu.programs import GpuPrograms, pad_everything
from tests.gpu.encoder import make_encoder, make_manifest
from tests.gpu.programs import make_programs
from tests.gpu.torch_engine import CudaMemory, FakeMemory, Program, TorchEngine

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The work of one process of the check; see tests/gpu/check.py."""

    kind: str
    model: str
    edges: tuple[int, ...]
    lengths: tuple[int, ...]
    width: int
    layers: int
    heads: int
    rounds: int
    fake: bool
    folder: str


class Runner:
    """Does as ``Model.run``, without a bundle: checks, chooses, pads, runs and cuts."""

    def __init__(self, programs: GpuPrograms) -> None:
        self.programs = programs
        self._checker = InputChecker(programs.manifest)
        self._dispatcher = Dispatcher(programs.manifest)
        self._results = ResultMaker(programs.manifest)

    def run(self, inputs: Mapping[str, Any]) -> Arrays:
        """Numpy in, numpy out."""
        arrays, sizes = self._checker.check(inputs)
        bucket = self._dispatcher.choose(sizes)
        padded = self._dispatcher.pad(bucket, arrays, sizes)
        return self._results.run(self.programs.get(bucket), padded, sizes)


class Check:
    """The report, and what one stage leaves to the next ones."""

    def __init__(self, settings: Settings, output: Path) -> None:
        self.settings = settings
        self.output = output
        self.report: dict[str, Any] = {"kind": settings.kind, "model": settings.model, "stages": {}}
        self.runners: dict[str, Runner] = {}
        self.device = "cpu" if settings.fake else "cuda"
        self.precision = "fp32" if settings.fake else "fp16"
        self.wants: dict[int, Arrays] = {}

    def run(self) -> dict[str, Any]:
        """Every stage; the report is on the disk after each, whatever ends the process."""
        for stage in (
            self.libcudart,
            self.make_model,
            self.make_programs,
            self.default,
            self.graphs,
            self.one_shape,
            self.zero_copy,
            self.threads,
            self.timings,
            self.fork,
            self.close,
        ):
            self._stage(stage.__name__, stage)
        stages = self.report["stages"]
        self.report["ok"] = all(item["ok"] for item in stages.values())
        self._write()
        return self.report

    def _stage(self, name: str, work: Callable[[], Any]) -> None:
        self.report["now"] = name
        self._write()
        started = time.perf_counter()
        try:
            entry = {"ok": True, "result": work()}
        except BaseException as error:
            lines = traceback.format_exc().strip().split("\n")
            text = f"{type(error).__name__}: {error}"
            entry = {"ok": False, "error": text[:2000], "traceback": lines[-30:]}
            if isinstance(error, KeyboardInterrupt):
                raise
        entry["seconds"] = round(time.perf_counter() - started, 3)
        self.report["stages"][name] = entry
        del self.report["now"]
        self._write()

    def _write(self) -> None:
        beside = self.output.with_suffix(".tmp")
        beside.write_text(json.dumps(self.report, indent=1))
        beside.replace(self.output)

    def libcudart(self) -> Any:
        """Loads the library that torch uses, and compares what both say of the GPU."""
        self.cuda = Cuda.load()
        device = self.cuda.device()
        self.memory_before = self.cuda.memory()
        self.memory: CudaMemory | FakeMemory
        facts = {"path": self.cuda.path, **device.to_json(), "memory": self.memory_before}
        if self.settings.fake:
            import ctypes

            self.library = ctypes.CDLL(self.cuda.path)
            self.memory = FakeMemory(self.library)
            return facts
        self.memory = CudaMemory()
        torch.cuda.init()
        props = torch.cuda.get_device_properties(0)
        expected = (props.name, f"{props.major}.{props.minor}", props.multi_processor_count)
        assert (device.name, device.compute_capability, device.sm_count) == expected, expected
        assert device.integrated == bool(props.is_integrated), props
        return facts

    def make_model(self) -> Any:
        """The encoder, and what eager makes of every length."""
        s = self.settings
        self.model = make_encoder(s.model, s.width, s.layers, s.heads, self.device)
        self.manifest = make_manifest(list(s.edges), s.width, "exact", self.precision)
        self.inputs = {n: self._inputs(n) for n in s.lengths}
        self.wants = {n: self.eager(self.inputs[n]) for n in s.lengths}
        finite = all(np.isfinite(x).all() for want in self.wants.values() for x in want.values())
        assert finite, "eager gives infinities"
        return {"parameters": sum(p.numel() for p in self.model.parameters())}

    def _inputs(self, length: int) -> Arrays:
        inputs = make_inputs(self.manifest, {"length": length}, length)
        # A text that ends before the input does, as in a batch.
        inputs["attention_mask"][:] = 1
        inputs["attention_mask"][:, length - length // 8 :] = 0
        return inputs

    def eager(self, inputs: Arrays) -> Arrays:
        """As users of PyTorch run it: numpy in, numpy out."""
        with torch.no_grad():
            tensors = [
                torch.from_numpy(inputs[x.name]).to(self.device) for x in self.manifest.inputs
            ]
            results = self.model(*tensors)
            return {
                x.name: r.cpu().numpy() for x, r in zip(self.manifest.outputs, results, strict=True)
            }

    def make_programs(self) -> Any:
        """A program per bucket for all of its lengths; if that can't be, for the largest alone."""
        s = self.settings
        failures = []
        for mode in ("exact", "pad"):
            manifest = make_manifest(list(s.edges), s.width, mode, self.precision)
            folder = Path(s.folder) / mode
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self.programs, seconds = make_programs(
                    s.kind, self.model, manifest, self.device, folder
                )
            except Exception as error:
                failures.append(f"{mode}: {type(error).__name__}: {error}"[:1500])
                continue
            self.manifest = manifest
            return {"mode": mode, "seconds": seconds, "failures": failures}
        raise RuntimeError("; ".join(failures))

    def _open(
        self, programs: list[Program], manifest: Manifest, mode: str, **options: Any
    ) -> Runner:
        if mode == REDUCE_OVERHEAD:
            manifest = pad_everything(manifest, True)
        engine = TorchEngine(programs, manifest, self.memory, f"torch ({self.settings.kind})")
        numbers = range(len(programs))
        return Runner(GpuPrograms(self.cuda, engine, manifest, numbers, mode, **options))

    def _judge(self, name: str, runner: Runner) -> Any:
        """Runs every length twice and compares with eager; keeps the runner if all is well."""
        errors: dict[str, Any] = {}
        try:
            for length in (*self.settings.lengths, *reversed(self.settings.lengths)):
                outputs = runner.run(self.inputs[length])
                for key, want in self.wants[length].items():
                    agreement = compare_arrays(outputs[key], want, self.manifest.tolerance)
                    entry = errors.setdefault(str(length), {})
                    entry[key] = max(entry.get(key, 0.0), agreement.max_abs_error)
                    assert agreement.ok, f"length {length}, {key}: {agreement.to_json()}"
        except BaseException:
            runner.programs.close()
            raise
        self.runners[name] = runner
        return {"max_abs_error": errors, **runner.programs.describe()}

    def default(self) -> Any:
        """Our default mode."""
        return self._judge("default", self._open(self.programs, self.manifest, DEFAULT))

    def graphs(self) -> Any:
        """One captured graph per bucket."""
        return self._judge("graphs", self._open(self.programs, self.manifest, REDUCE_OVERHEAD))

    def one_shape(self) -> Any:
        """Everything padded to the largest length, in one graph."""
        s = self.settings
        manifest = make_manifest([s.edges[-1]], s.width, "pad", self.precision)
        runner = self._open([self.programs[-1]], manifest, REDUCE_OVERHEAD)
        return self._judge("one_shape", runner)

    def zero_copy(self) -> Any:
        """Graphs that reach into the CPU's memory, as on a Jetson; over PCIe here."""
        runner = self._open(self.programs, self.manifest, REDUCE_OVERHEAD, zero_copy=True)
        return self._judge("zero_copy", runner)

    def threads(self) -> Any:
        """Four threads that share a model."""
        runner = self.runners["graphs"]
        failures: list[str] = []

        def work(number: int) -> None:
            chosen = random.Random(number)
            try:
                for _ in range(50):
                    length = chosen.choice(self.settings.lengths)
                    outputs = runner.run(self.inputs[length])
                    for key, want in self.wants[length].items():
                        agreement = compare_arrays(outputs[key], want, self.manifest.tolerance)
                        assert agreement.ok, f"length {length}, {key}: {agreement.to_json()}"
            except BaseException as error:
                failures.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        return {"runs": 200}

    def timings(self) -> Any:
        """Medians over rounds in which every contender runs every length once, in random order."""
        contenders: dict[str, Callable[[Arrays], Arrays]] = {"eager": self.eager}
        contenders.update({name: runner.run for name, runner in self.runners.items()})
        pairs = [(name, length) for name in contenders for length in self.settings.lengths]
        samples: dict[tuple[str, int], list[float]] = {pair: [] for pair in pairs}
        order = random.Random(0)
        for round_number in range(self.settings.rounds + 5):
            order.shuffle(pairs)
            for name, length in pairs:
                inputs = self.inputs[length]
                started = time.perf_counter_ns()
                contenders[name](inputs)
                taken = (time.perf_counter_ns() - started) / 1e6
                if round_number >= 5:
                    samples[name, length].append(taken)
        medians = {
            name: {str(n): statistics.median(samples[name, n]) for n in self.settings.lengths}
            for name in contenders
        }
        spread = {
            name: {
                str(n): [float(np.percentile(samples[name, n], p)) for p in (10, 90)]
                for n in self.settings.lengths
            }
            for name in contenders
        }
        means = {name: statistics.fmean(values.values()) for name, values in medians.items()}
        best = means.get("graphs")
        return {
            "rounds": self.settings.rounds,
            "median_ms": medians,
            "p10_p90_ms": spread,
            "mean_of_medians_ms": means,
            "graphs_gain": {k: v / best for k, v in means.items()} if best else None,
        }

    def fork(self) -> Any:
        """A child gets a clear error, and ends by itself."""
        runner = self.runners["graphs"]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            text = "ran"
            try:
                runner.programs.after_fork()
                runner.run(self.inputs[self.settings.lengths[0]])
            except GpuError as error:
                text = error.message
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            text = stream.read().decode()
        status = os.waitpid(child, 0)[1]
        assert status == 0 and "was forked after CUDA had been loaded" in text, (status, text)
        runner.run(self.inputs[self.settings.lengths[0]])
        return {"message": text}

    def close(self) -> Any:
        """Everything of ours is given back; what torch keeps is torch's."""
        for runner in self.runners.values():
            runner.programs.close()
        self.runners = {}
        gc.collect()
        memory = {"memory_before": self.memory_before, "memory_after": self.cuda.memory()}
        if self.settings.fake:
            memory["live"] = int(self.library.fake_cudart_live())
            assert memory["live"] == 0 and self.library.fake_cudart_misuses() == 0
        return memory
