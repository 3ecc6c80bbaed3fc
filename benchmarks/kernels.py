#!/usr/bin/env python3
"""Measures the native kernels against this machine's multiply-add peak.

    benchmarks/run kernels                                  everything, about six minutes
    benchmarks/run kernels --only gemm --threads 1 --m 49 --n 384 --k 1536
    benchmarks/run kernels --clock cpu --threads 1          by processor time, on a busy machine
    benchmarks/run kernels --march x86-64-v4,x86-64-amx --turns 3 --only gemm --n 384,1536
                           instruction sets in turns, then each kernel's median over the turns
                           beside that of the first set's float32 product of the same size
    benchmarks/run kernels --only convolution --torch
                           each convolution, then torch's own (oneDNN's) of the same size, with
                           channels last and behind; run it with a Python that has torch

Products are measured with a B that stays in the caches ("hot") and with one that comes from memory
each time ("cold"), as a model's weights do. float32 products ("gemm") are followed by those of the
same sizes with bfloat16 and int8 weights ("narrow"); shares of the peak are always of float32's.
Needs Python 3.8 and g++ ($CXX) alone, --torch aside.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
NATIVE = REPOSITORY / "edgecompile" / "runtime" / "native"
SOURCES = (
    "base/profile.cpp",
    "threads/threads.cpp",
    "threads/thread_count.cpp",
    "kernels/gemm/gemm.cpp",
    "kernels/gemm/gemm_split.cpp",
    "kernels/gemm/gemm_pack.cpp",
    "kernels/gemm/gemm_epilogue.cpp",
    "kernels/gemm/narrow/gemm_bf16.cpp",
    "kernels/gemm/narrow/gemm_int4.cpp",
    "kernels/gemm/narrow/gemm_int8.cpp",
    "kernels/attention/attention.cpp",
    "kernels/convolution/convolution.cpp",
    "kernels/convolution/convolution_channels.cpp",
    "kernels/convolution/convolution_winograd.cpp",
    "base/allocator.cpp",
)
FLAGS = (
    "-std=c++20", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-pthread",
)  # fmt: skip


def default_march() -> str:
    """The largest of the variants' levels that this CPU has."""
    if platform.machine() != "x86_64":
        return "native"
    flags = Path("/proc/cpuinfo").read_text().split()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= set(flags):
        if {"avx512_vnni", "avx512_bf16"} <= set(flags):
            tiles = {"amx_tile", "amx_bf16", "amx_int8"} <= set(flags)
            return "x86-64-amx" if tiles else "x86-64-avx512bf16"
        return "x86-64-v4"
    return "x86-64-v3" if {"avx2", "fma"} <= set(flags) else "x86-64-v2"


def march_flags(march: str) -> list[str]:
    """The flags of a variant, or of a value of -march that is none."""
    variant = REPOSITORY / "profiles" / "variants" / f"{march}.toml"
    if not variant.is_file():
        return [f"-march={march}"]
    # Strings and lists of strings are JSON as well; tomllib came with Python 3.11.
    pairs = re.findall(r"^(march|extra_flags) = (.+)$", variant.read_text(), re.MULTILINE)
    values = {key: json.loads(value) for key, value in pairs}
    return [f"-march={values['march']}", *values.get("extra_flags", [])]


def build(march: str, folder: Path) -> Path:
    program = folder / f"bench_kernels-{march}"
    sources = [str(NATIVE / s) for s in SOURCES]
    sources.append(str(REPOSITORY / "tests" / "native" / "kernels" / "bench_kernels.cpp"))
    compiler = os.environ.get("CXX", "g++")
    flags = [*FLAGS, *march_flags(march)]
    subprocess.run([compiler, *flags, f"-I{NATIVE}", *sources, "-o", str(program)], check=True)
    return program


def measure(program: Path, arguments: list[str]) -> Iterator[dict[str, Any]]:
    """The lines of the program, as soon as it prints them."""
    with subprocess.Popen([str(program), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode != 0:
        raise SystemExit(f"{program.name} ended with {process.returncode}")


WEIGHTS = {
    "gemm_packed": "gemm",
    "gemm_bf16": "bf16",
    "gemm_int8": "int8",
    "gemm_int8_pairs": "int8 pairs",
    "gemm_int4": "int4",
}


def product_name(r: dict[str, Any]) -> str:
    return f"m={r['m']} n={r['n']} k={r['k']} {r['b']}" + (" gelu" if r["act"] else "")


def row(r: dict[str, Any]) -> str:
    kernel, threads = r["kernel"], r["threads"]
    if kernel == "fma_peak":
        return f"\n{threads} thread(s): multiply-add peak {r['gflops']:.1f} GFLOP/s"
    if kernel == "fork_join":
        return f"fork and join {r['us']:.2f} µs"
    share = f"{r['us']:10.1f} µs {r['gflops']:8.1f} GFLOP/s {100 * r['of_peak']:6.1f} % of peak"
    if kernel == "attention":
        name = f"attention {r['heads']} heads, length {r['length']}, dim {r['dim']}"
        return f"{name + (' masked' if r['masked'] else '') + (' narrow' if r['narrow'] else ''):48}{share}"
    if kernel == "convolution":
        return f"{'convolution ' + r['model']:48}{share}" + "".join(
            f"\n{'  torch, ' + order:48}{us:10.1f} µs, {us / r['us']:.2f} times as long"
            for order, us in r.get("torch_us", {}).items()
        )
    name = f"{WEIGHTS[kernel]} {product_name(r)}"
    return f"{name:48}{share} {r['b_gb_per_s']:7.1f} GB/s of B"


def time_torch(r: dict[str, Any], rounds: int, seconds: float) -> dict[str, float]:
    """Microseconds of torch's convolution of the same size, by the order of the input's memory."""
    import torch

    torch.set_num_threads(r["threads"])
    x = torch.randn(r["input"])
    ends = r["input"][1], r["outputs"]
    first, second = ends if r["transposed"] else reversed(ends)
    weight = torch.randn(first, second // r["groups"], *r["kernel_size"])
    bias = torch.randn(r["outputs"])
    dims = 1 if r["input"][2] == 1 else 2
    if dims == 1:
        x, weight = x[:, :, 0], weight[:, :, 0]
    stride, padding = (r[name][-dims:] for name in ("stride", "padding"))
    zeros, ones = [0] * dims, [1] * dims
    times_us = {}
    for order in ("channels first", "channels last"):
        if order == "channels last":
            x = x.movedim(1, -1).contiguous().movedim(-1, 1)
            if dims == 2:
                weight = weight.contiguous(memory_format=torch.channels_last)

        def run(x: Any = x, weight: Any = weight) -> None:
            torch.convolution(
                x, weight, bias, stride, padding, ones, r["transposed"], zeros, r["groups"]
            )

        with torch.inference_mode():
            start, calls = time.perf_counter(), 0
            while calls == 0 or time.perf_counter() - start < seconds:
                run()
                calls += 1
            best = float("inf")
            for _ in range(rounds):
                start = time.perf_counter()
                for _ in range(calls):
                    run()
                best = min(best, (time.perf_counter() - start) / calls)
        times_us[order] = 1e6 * best
    return times_us


def compare(results: list[dict[str, Any]]) -> Iterator[str]:
    """Medians over the turns, the products of one size beside each other."""
    sizes: dict[str, dict[tuple[str, str], list[float]]] = {}
    for r in results:
        if r["kernel"] in WEIGHTS:
            size = sizes.setdefault(f"{r['threads']} thread(s) {product_name(r)}", {})
            size.setdefault((r["march"], WEIGHTS[r["kernel"]]), []).append(r["us"])
    for size, products in sizes.items():
        yield f"\n{size}"
        medians = {who: statistics.median(times) for who, times in products.items()}
        first = next(iter(medians.values()))
        for (march, weights), median in medians.items():
            times = products[march, weights]
            spread = 100 * (max(times) - min(times)) / median
            yield f"  {weights} {march:16}{median:10.1f} µs {median / first:8.3f} ± {spread / 2:.0f} %"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--march",
        default=default_march(),
        help="variants or values of -march, separated by commas; default: %(default)s",
    )
    parser.add_argument("--turns", type=int, default=1, help="over all of --march")
    parser.add_argument("--torch", action="store_true", help="time torch's convolutions as well")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--only", choices=["gemm", "narrow", "attention", "convolution", "fork_join"]
    )
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    for name in ("threads", "m", "n", "k", "length", "seconds", "rounds"):
        parser.add_argument(
            f"--{name}", help="passed on, see tests/native/kernels/bench_kernels.cpp"
        )
    options = vars(parser.parse_args())
    marches, turns = options.pop("march").split(","), options.pop("turns")
    as_json, with_torch = options.pop("json"), options.pop("torch")
    arguments = [x for name, value in options.items() if value for x in (f"--{name}", str(value))]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        programs = {march: build(march, Path(folder)) for march in marches}
        for turn in range(turns):
            for march, program in programs.items():
                if len(marches) > 1 and not as_json:
                    print(f"\n-- {march}, turn {turn + 1} of {turns}", flush=True)
                for result in measure(program, arguments):
                    if with_torch and result["kernel"] == "convolution":
                        rounds, seconds = (
                            int(options["rounds"] or 7),
                            float(options["seconds"] or 0.03),
                        )
                        result["torch_us"] = time_torch(result, rounds, seconds)
                    results.append({**result, "march": march, "turn": turn})
                    print(json.dumps(results[-1]) if as_json else row(result), flush=True)
    if turns * len(marches) > 1 and not as_json:
        print(*compare(results), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
