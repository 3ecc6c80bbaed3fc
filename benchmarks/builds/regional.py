"""Measures what equal layers cost to build; see docs/benchmarks/README.md.

Every figure is processor time in user mode of this process or of the compilers that it starts, one
at a time, so that a busy machine hardly changes it; ``wall_s`` stands beside for a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import torch

import edgecompile
from edgecompile.backends.cpu import backend
from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import GeneratedCpp, generate_cpp
from edgecompile.errors import CompileError
from edgecompile.hosts.identity import describe_machine
from edgecompile.targets.profile import VariantSpec, load_target
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.precompiled import VARIABLE

REPOSITORY = Path(__file__).resolve().parents[2]
WIDTH, TOKENS = 96, 16
T = TypeVar("T")


class Encoder(torch.nn.Module):
    """A BERT of narrow layers: what is generated and compiled doesn't depend on the width."""

    def __init__(self, layers: int) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        config = BertConfig(
            hidden_size=WIDTH,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=2 * WIDTH,
            vocab_size=1000,
        )
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        output = self.bert(input_ids=input_ids, attention_mask=attention_mask)
        return output.last_hidden_state


def block(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One of the equal blocks."""
    return torch.tanh(torch.nn.functional.linear(x, weight, bias)) + x


REGION = torch.compiler.nested_compile_region(block)


class Regions(torch.nn.Module):
    """Equal blocks, each a call of one region that torch compiles once."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(blocks)]
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = REGION(layer.weight, layer.bias, x)
        return x


class Clock:
    """Seconds of each step, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = {}

    def run(self, name: str, action: Callable[[], T]) -> T:
        """Runs ``action`` and notes what it took."""
        who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        before, begun = [resource.getrusage(x).ru_utime for x in who], time.perf_counter()
        result = action()
        wall = time.perf_counter() - begun
        user = sum(resource.getrusage(x).ru_utime for x in who) - sum(before)
        self.seconds[name] = {"user_s": user, "wall_s": wall}
        print(f"  {name}: {user:.1f} s", file=sys.stderr, flush=True)
        return result


def measure(layers: int, folder: Path) -> dict[str, Any]:
    """One program of an encoder, step by step."""
    torch.manual_seed(0)
    module = Encoder(layers).eval()
    variant = load_target("cpu-x86-64").variants[0]
    ids = torch.randint(0, 1000, (1, TOKENS))
    mask = torch.ones_like(ids)
    mask[:, TOKENS * 3 // 4 :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    length = torch.export.Dim("length", min=2, max=256)
    shapes = {name: {1: length} for name in inputs}
    clock = Clock()
    program = clock.run(
        "export", lambda: torch.export.export(module, (), inputs, dynamic_shapes=shapes)
    )
    graph = clock.run("unlift", program.module)
    clock.run("lower", lambda: lower_graph(graph))
    signature = program.graph_signature
    shared = {*signature.parameters, *signature.buffers, *(n for n, _ in graph.named_buffers())}
    generated = clock.run(
        "generate",
        lambda: generate_cpp(
            graph,
            inputs,
            variant,
            shared=shared,
        ),
    )
    compile_parts(clock, generated, variant, folder / f"cache-{layers}")
    return {
        "steps": clock.seconds,
        "kernels": len(re.findall(r'^extern "C"', generated.kernels, re.MULTILINE)),
        "wrapper_lines": generated.wrapper.count("\n"),
        "kernel_lines": generated.kernels.count("\n"),
    }


def compile_parts(clock: Clock, generated: GeneratedCpp, variant: VariantSpec, cache: Path) -> None:
    """The wrapper, then all of a program, from an empty cache; without and with precompiled headers.

    What belongs to every program (support.cpp) is in both.
    """
    toolchain = find_toolchain(variant.arch)
    support = backend.InductorCpuBackend().support(generated)
    parts = {
        "wrapper": GeneratedCpp(generated.wrapper, "", {}, generated.isa),
        "all files": generated,
    }
    for name, part in parts.items():
        for kind in ("plain", "making headers", "with headers"):
            os.environ[VARIABLE] = "0" if kind == "plain" else "1"
            # New objects each time; the headers stay.
            objects = cache / name / kind
            objects.mkdir(parents=True)
            headers = cache / name / "headers"
            headers.mkdir(exist_ok=True)
            (objects / "headers").symlink_to(headers)
            os.environ["EDGECOMPILE_CACHE_DIR"] = str(objects)
            clock.run(
                f"{name}, {kind}",
                lambda part=part: backend._compile_objects(  # type: ignore[misc]
                    toolchain, part, variant, support
                ),
            )


def try_regions() -> str:
    """The fate of torch's own regional compilation on the way to C++."""
    x = torch.randn(1, TOKENS, WIDTH)
    variant = load_target("cpu-x86-64").variants[0]
    try:
        program = torch.export.export(Regions(4).eval(), (), {"x": x}, strict=True)
        graph = program.module()
        calls = [n for n in graph.graph.nodes if "invoke_subgraph" in str(n.target)]
        outcome = f"exported with {len(calls)} calls of a region; "
        generate_cpp(
            graph,
            {"x": x},
            variant,
            shared=set(program.state_dict),
        )
        return outcome + "C++ was generated"
    except CompileError as error:
        return outcome + f"no C++: {error.message.splitlines()[0]}"
    except Exception as error:  # torch raises whatever its tracer raises
        return f"not exported: {type(error).__name__}: {str(error).splitlines()[0]}"


def render(record: Mapping[str, Any]) -> str:
    """The record for people."""
    counts = list(record["layers"])
    names = list(next(iter(record["layers"].values()))["steps"])
    rows = [
        [name, *(f"{record['layers'][n]['steps'][name]['user_s']:.1f}" for n in counts)]
        for name in names
    ]
    rows += [
        [key.replace("_", " "), *(str(record["layers"][n][key]) for n in counts)]
        for key in ("kernels", "wrapper_lines", "kernel_lines")
    ]
    columns = ["user seconds", *(f"{n} layers" for n in counts)]
    rule = ["---", *["---:"] * len(counts)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *rows))
    return f"""# What equal layers cost to build, {record["started"][:10]}

{table}

`nested_compile_region`: {record["regions"]}.

- machine: {", ".join(f"{key} {value}" for key, value in record["machine"].items())}
- edgecompile {record["edgecompile"]}, torch {record["torch"]}, started {record["started"]}
"""


def main() -> int:
    """Runs; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks/run regional", description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 12])
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    parser.add_argument("--name", default="regional-figures", help="of the record, behind the date")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "layers": {},
    }
    with tempfile.TemporaryDirectory(prefix="edgecompile-regional-") as base:
        # Imports that are made on first use aren't the first model's cost.
        measure(1, Path(base))
        for layers in options.layers:
            print(f"== {layers} layers", file=sys.stderr, flush=True)
            record["layers"][str(layers)] = measure(layers, Path(base))
        record["regions"] = try_regions()
    record["machine"] = describe_machine()
    record["edgecompile"], record["torch"] = edgecompile.__version__, str(torch.__version__)
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"{record['started'][:10]}-{options.name}"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".md").write_text(render(record))
    print(json.dumps({"record": f"{stem}.md", "regions": record["regions"]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
