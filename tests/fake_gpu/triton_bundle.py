"""A bundle of the backend triton for the fake of CUDA's driver: real runtime, a hand-written program."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.cpu.host import architecture
from tests.fake_gpu.build import build_fake, need_compiler
from tests.fake_gpu.numpy_engine import embed
from tests.hostile.toy import build_libraries, make_toy_bundle
from tests.runtime.bundles import LENGTHS, make_case
from tests.runtime.generations import make_generative, put_generations
from tests.runtime.golden_files import write_case

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "tests-triton"
VARIANT = "cuda-sm90"
DEVICE = "name=Fake H100;cc=9.0;sm=132;memory=80000000000;integrated=0;driver=12080"

#: Functions of the driver that opening a bundle and running it call.
CALLS_OF_A_RUN = (
    "cuMemAlloc_v2", "cuMemHostAlloc", "cuMemcpyHtoD_v2", "cuStreamCreate", "cuModuleLoadDataEx",
    "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel", "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuStreamBeginCapture_v2", "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuDeviceGetName", "cuMemGetInfo_v2",
)  # fmt: skip


def build_fake_driver(folder: Path) -> Path:
    """The fake of libcuda, compiled into ``folder``."""
    return build_fake(HERE / "fake_cuda.c", folder / "libfake_cuda.so")


@cache
def build_gpu_runtime() -> Path:
    """The runtime library for GPUs of this machine's architecture."""
    native = pytest.importorskip("edgecompile.toolchain.gpu_native")
    path: Path = native.build_gpu_runtime(architecture(platform.machine()), BUILD).path
    return path


@cache
def build_older_gpu_runtime() -> Path:
    """As those of bundles built before 0.2.0, it runs single programs alone."""
    native = pytest.importorskip("edgecompile.toolchain.gpu_native")
    library = native.gpu_library(architecture(platform.machine()))
    path: Path = replace(library, parts=library.parts[:1]).build(BUILD)
    return path


@cache
def build_program(runtime: Path, *defines: str, name: str = "toy_program.c") -> bytes:
    """A program, linked to the runtime library."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"toy-{os.getpid()}.so"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    flags += ["-fvisibility=hidden", *(f"-D{item}" for item in defines)]
    source = str(HERE / "programs" / name)
    subprocess.run([need_compiler(), *flags, source, str(runtime), "-o", str(path)], check=True)
    try:
        return path.read_bytes()
    finally:
        path.unlink()


def check_by_threads(check: Callable[[int, int], None]) -> None:
    """Six threads, each with two lengths; ``check`` gets a length and the thread's number."""
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for length in (seed + 1, 33 + seed):
                check(length, seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def take_failing_driver(
    patch: pytest.MonkeyPatch, driver: Path, copy: Path, failures: str, visible: str | None
) -> None:
    """Lets the runtime load a copy of the fake driver, whose calls fail as FAKE_CUDART_FAIL says.

    It has a name of its own, as what was loaded once stays loaded.
    """
    copy.write_bytes(driver.read_bytes())
    patch.setenv("EDGECOMPILE_CUDA_DRIVER", str(copy))
    patch.setenv("FAKE_CUDART_FAIL", failures)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        patch.setenv("CUDA_VISIBLE_DEVICES", visible)


class TritonBundle:
    """A bundle with a variant for the CPU that gives zeros, and one for a GPU that computes.

    Change ``bundle`` or ``variant``, then ``write``.
    """

    source = "toy_program.c"

    def __init__(self, folder: Path, *defines: str, library: Path | None = None) -> None:
        """``library`` takes the place of the runtime library for GPUs."""
        self.bundle = make_toy_bundle(folder, build_libraries())
        self.library = runtime = library or build_gpu_runtime()
        self.runtime = f"code/{VARIANT}/{runtime.name}"
        self.programs = [f"code/{VARIANT}/bucket-{i}.so" for i in range(2)]
        self.variant: dict[str, Any] = {
            "name": VARIANT,
            "arch": architecture(platform.machine()),
            "backend": "triton",
            "requires": [],
            "glibc": "2.17",
            "runtime": self.runtime,
            "programs": list(self.programs),
            "rank": 60,
            "gpu": {
                "compute_capabilities": ["9.0"],
                "ptx": None,
                "driver": 12000,
                "precision": "fp32",
                "tolerance": {"atol": 0.0, "rtol": 0.0},
                "min_cosine": None,
                "padding": True,
            },
        }
        self.bundle.document["variants"].append(self.variant)
        program = build_program(runtime, *defines, name=self.source)
        self.bundle.files[self.runtime] = runtime.read_bytes()
        for path in self.programs:
            self.bundle.files[path] = program
        for bucket, length in LENGTHS.items():
            inputs = make_case(length)[0]
            case = write_case(inputs, embed(inputs))
            self.bundle.files[f"golden/{bucket}-hint.npz"] = case

    @property
    def gpu(self) -> dict[str, Any]:
        """What the variant says of GPUs."""
        spec: dict[str, Any] = self.variant["gpu"]
        return spec

    def add_alternatives(self, *defines: str, bucket: int | None = None) -> None:
        """Another program of a bucket, or of each, compiled with these macros."""
        lists = self.variant.setdefault("alternatives", [[], []])
        program = build_program(self.library, *defines, name=self.source)
        for index in range(2) if bucket is None else (bucket,):
            path = f"code/{VARIANT}/bucket-{index}-{len(lists[index]) + 1}.so"
            lists[index].append(path)
            self.bundle.files[path] = program

    def write(self) -> str:
        """Writes it; its path."""
        return self.bundle.write()


def select(inputs: dict[str, Any]) -> dict[str, Any]:
    """The model of toy_selector.c."""
    mask = inputs["attention_mask"] != 0
    ids = inputs["input_ids"].astype(np.float32)
    return {"kept": ids[mask], "left": ids[~mask]}


class TritonSelector(TritonBundle):
    """A bundle whose outputs have sizes that depend on values; both buckets take every length as it is."""

    source = "toy_selector.c"

    def __init__(self, folder: Path, *defines: str, library: Path | None = None) -> None:
        super().__init__(folder, *defines, library=library)
        self.gpu["graphs"] = False
        document = self.bundle.document
        document["outputs"] = [
            {"name": name, "dtype": "float32", "shape": [None]} for name in ("kept", "left")
        ]
        document["buckets"][1]["mode"] = "exact"
        for bucket, length in LENGTHS.items():
            inputs = make_case(length)[0]
            case = write_case(inputs, select(inputs))
            self.bundle.files[f"golden/{bucket}-hint.npz"] = case


def multiply(inputs: dict[str, Any]) -> dict[str, Any]:
    """The model of toy_multiplier.c."""
    weights = np.arange(12, dtype=np.float32)
    pairs = embed(inputs)["states"]
    result = pairs @ weights[:8].reshape(4, 2).T + weights[8:]
    return {"one": result, "other": result}


class TritonMultiplier(TritonBundle):
    """A bundle with two products that cuBLASLt may compute."""

    source = "toy_multiplier.c"

    def __init__(self, folder: Path, *defines: str, library: Path | None = None) -> None:
        super().__init__(folder, *defines, library=library)
        self.gpu["cublaslt"] = True
        self.bundle.document["outputs"] = [
            {"name": name, "dtype": "float32", "shape": ["batch", "length", 4]}
            for name in ("one", "other")
        ]
        for bucket, length in LENGTHS.items():
            inputs = make_case(length)[0]
            case = write_case(inputs, multiply(inputs))
            self.bundle.files[f"golden/{bucket}-hint.npz"] = case


def build_fake_cublaslt(driver: Path) -> Path:
    """The fake of cuBLASLt, compiled beside the fake driver that it is linked against."""
    path = driver.with_name("libfake_cublaslt.so")
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-shared", "-fPIC"]
    linked = [str(driver), f"-Wl,-rpath,{driver.parent}"]
    source = str(HERE / "fake_cublaslt.c")
    subprocess.run([need_compiler(), *flags, source, *linked, "-o", str(path)], check=True)
    return path


class FakeCublasLt:
    """The fake in this process, which loads it once for all tests."""

    def __init__(self, driver: Path) -> None:
        path = driver.with_name("libfake_cublaslt.so")
        self.path = str(path if path.is_file() else build_fake_cublaslt(driver))
        self.library = ctypes.CDLL(self.path)
        self.library.fake_cublaslt_products.restype = ctypes.c_long
        self.library.fake_cublaslt_searches.restype = ctypes.c_long

    @property
    def products(self) -> int:
        """How many were queued since the last look."""
        return int(self.library.fake_cublaslt_products())

    @property
    def searches(self) -> int:
        """For how many it was asked for an algorithm since the last look."""
        return int(self.library.fake_cublaslt_searches())


VOCABULARY = 100


def next_token(text: Sequence[int]) -> int:
    """The model of toy_decoder.c: the token behind a text."""
    return sum((row + 3) * token for row, token in enumerate(text)) % VOCABULARY


class TritonDecoder(TritonBundle):
    """A generative bundle: programs of one token, and of 2 to 16, over caches of 64 rows."""

    source = "toy_decoder.c"

    def __init__(self, folder: Path, *, library: Path | None = None) -> None:
        super().__init__(folder, library=library)
        make_generative(self.bundle)
        self.bundle.document["generation"]["defaults"] = {"max_new_tokens": 20}
        for index, length in ((0, 1), (1, 5)):
            put_case(self, index, length)
        cases = [[9], [1, 5], list(range(30, 50))]
        put_generations(
            self.bundle, {"cases": [{"prompt": x, "tokens": generate(x, 8)} for x in cases]}
        )


def put_case(decoder: TritonDecoder, bucket: int, length: int, rows: int = 40) -> None:
    """The golden vector of a bucket: tokens at place 3 of caches of so many rows."""
    inputs = {
        "input_ids": np.full((1, length), 7),
        "position": np.array([3]),
        "last": np.array([length - 1]),
        "key": np.ones((rows, 2, 3), np.float32),
        "value": np.full((rows, 2, 4), 2, np.float32),
    }
    token = next_token([1] * 3 + [7] * length)
    logits = -np.abs(np.arange(VOCABULARY) - token)[None].astype(np.float32)
    decoder.bundle.files[f"golden/{bucket}-hint.npz"] = write_case(inputs, {"logits": logits})


def generate(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that follow."""
    text = list(prompt)
    for _ in range(count):
        text.append(next_token(text))
    return text[len(prompt) :]


def make_inputs(length: int, batch: int = 1, seed: int = 0) -> dict[str, Any]:
    """Inputs of a length."""
    random = np.random.default_rng(seed)
    return {
        "input_ids": random.integers(0, 100, (batch, length)),
        "attention_mask": random.integers(0, 2, (batch, length)),
    }


def make_turn(rows: int) -> dict[str, Any]:
    """Inputs of the decoder with the caller's own caches of so many rows: three tokens behind four.

    :data:`TURN_TOKEN` follows, and the rows 4 to 6 of the caches are written.
    """
    return {
        "input_ids": np.array([[7, 8, 9]]),
        "position": np.array([4]),
        "last": np.array([2]),
        "key": np.zeros((rows, 2, 3), np.float32),
        "value": np.zeros((rows, 2, 4), np.float32),
    }


TURN_TOKEN = (7 * 7 + 8 * 8 + 9 * 9) % VOCABULARY
