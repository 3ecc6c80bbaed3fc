"""Times each generated token, beside other runtimes."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generation.worker import CONTENDERS
from benchmarks.serving.soak import memory_of
from edgecompile.hosts.identity import load_average

REPOSITORY = Path(__file__).resolve().parents[2]
#: GPT-2 as it was published, which transformers has as defaults; and a tiny one.
SIZES: dict[str, dict[str, Any]] = {
    "gpt2-124m": {},
    "tiny": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 200, "n_positions": 1024},
}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run generation", description="Time each generated token, side by side."
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="a tiny model, to try the script")
    usual = ["edgecompile", "eager", "onnxruntime", "torch.compile"]
    add("--against", nargs="+", choices=list(CONTENDERS), default=usual)
    add(
        "--path",
        nargs=2,
        action="append",
        default=[],
        metavar=("CONTENDER", "PATH"),
        help="what a contender opens instead of the model: a bundle, a GGUF file, a folder",
    )
    add("--prompts", nargs="+", type=int, default=[16, 128, 512], help="lengths (16 128 512)")
    add("--tokens", type=int, default=64, help="to generate from each (default 64)")
    add("--rounds", type=int, default=5, help="interleaved (default 5)")
    add("--threads", type=int, default=2, help="of each contender (default 2)")
    add("--precision", default="fp32", help="of the bundle (default fp32)")
    add("--model", type=Path, help="a folder, instead of a GPT-2 made here")
    add("--bundle", type=Path, help="of that model, instead of one that is built here")
    add("--context", type=int, help="rows of caches (default: all that the model takes)")
    add("--device", default="cpu", help="of torch: cpu, or cuda in float16 (default cpu)")
    add("--work", type=Path, default=REPOSITORY / "generation-bench", help="where files are left")
    add("--output", type=Path, help="write the figures here, too, as JSON")
    return parser.parse_args(arguments)


def make_model(size: str, folder: Path) -> Path:
    """A GPT-2 with random weights, the same ones every time."""
    import torch
    import transformers

    if not (folder / "config.json").is_file():
        tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        config = transformers.GPT2Config(**SIZES[size], **tokens)
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:  # large enough that contexts matter
                    parameter.normal_(0, 0.05)
        model.save_pretrained(folder)
    return folder


def make_bundle(model: Path, options: argparse.Namespace) -> Path:
    """The model, built for prompts of these lengths."""
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.models.options import LoadOptions
    from edgecompile.pipeline.build import build
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.planning.request import PlanRequest

    output = model.with_name(f"{model.name}-{options.precision}.ecb")
    if not output.exists():
        longest = max(options.prompts)
        lengths = LengthDistribution.from_samples(options.prompts)
        build(
            BuildRequest(
                model=str(model),
                target="cpu-x86-64",
                plan=PlanRequest(
                    lengths,
                    max_length=longest,
                    mode="exact",
                    buckets=1,
                    precision=options.precision,
                ),
                output=output,
                work_dir=model.with_name(model.name + "-work"),
                load=LoadOptions(task="causal-lm", batch=(1, 1)),
            )
        )
    return output


class Contender:
    """A process that generates when it is asked to."""

    def __init__(self, kind: str, path: Path, threads: int, context: int, device: str) -> None:
        self.kind = kind
        count = str(threads)
        script = Path(__file__).with_name("worker.py")
        # Other runtimes may lie in folders of their own.
        folders = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, str(script), kind, str(path), count, str(context), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": count, "PYTHONPATH": os.pathsep.join(folders)},
        )

    def generate(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """Tokens and milliseconds of each.

        Raises:
            RuntimeError: the process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith('{"tokens"'):
                result: dict[str, Any] = json.loads(line)
                return result
        raise RuntimeError(f"{self.kind} ended with {self._process.wait()}")

    def memory(self) -> dict[str, int]:
        """Bytes of the process in memory."""
        return memory_of(self._process.pid)

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    """Builds, measures, prints a table."""
    options = parse_arguments()
    size = "tiny" if options.tiny else "gpt2-124m"
    options.work.mkdir(parents=True, exist_ok=True)
    model = options.model or make_model(size, options.work / size)
    paths = dict(options.path)
    if "edgecompile" in options.against:
        paths.setdefault("edgecompile", options.bundle or make_bundle(model, options))
    config = json.loads((model / "config.json").read_text())
    longest = config.get("n_positions") or config["max_position_embeddings"]
    context = options.context or int(longest)
    vocabulary = int(config["vocab_size"])
    random = np.random.default_rng(1)
    prompts = [random.integers(3, vocabulary, length).tolist() for length in options.prompts]
    contenders = [
        Contender(
            kind,
            Path(paths.get(kind, model)),
            options.threads,
            context,
            options.device,
        )
        for kind in options.against
    ]
    steps: dict[tuple[str, int], list[float]] = {}
    firsts: dict[tuple[str, int], list[float]] = {}
    differing = []
    print(f"load average {load_average()}", file=sys.stderr)
    try:
        for number in range(options.rounds + 1):
            for prompt in prompts:
                expected: list[int] | None = None
                # Nobody goes first in every round.
                shift = number % len(contenders)
                for contender in contenders[shift:] + contenders[:shift]:
                    result = contender.generate(prompt, options.tokens)
                    expected = expected or result["tokens"]
                    if result["tokens"] != expected:
                        differing.append(f"{contender.kind} behind {len(prompt)} tokens")
                    if number:  # the first round compiles, and warms up
                        key = contender.kind, len(prompt)
                        steps.setdefault(key, []).extend(result["step_ms"])
                        firsts.setdefault(key, []).append(result["first_ms"])
            print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
        held = {contender.kind: contender.memory() for contender in contenders}
    finally:
        for contender in contenders:
            contender.close()
    rows = [
        {
            "contender": kind,
            "prompt": length,
            "first_ms": statistics.median(firsts[kind, length]),
            "token_ms": statistics.median(steps[kind, length]),
            "token_p90_ms": float(np.quantile(steps[kind, length], 0.9)),
            "memory_bytes": held[kind],
        }
        for length in options.prompts
        for kind in options.against
    ]
    print("| prompt | contender | first token ms | each further token ms | p90 |")
    print("|---:|---|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['prompt']} | {row['contender']} | {row['first_ms']:.1f} "
            f"| {row['token_ms']:.2f} | {row['token_p90_ms']:.2f} |"
        )
    for kind, sizes in held.items():
        print(
            f"{kind}: {sizes['RSS'] / 1e6:.0f} MB resident, of it {sizes['private'] / 1e6:.0f} private"
        )
    for text in dict.fromkeys(differing):
        print(f"other tokens: {text}")
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
