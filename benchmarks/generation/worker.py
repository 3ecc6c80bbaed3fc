"""One contender of benchmarks/run generation, in a process of its own.

    python worker.py CONTENDER MODEL_OR_BUNDLE THREADS CONTEXT DEVICE

Reads ``{"prompt": [ids], "tokens": N}`` a line, answers ``{"tokens": [ids], "first_ms", "step_ms"}``:
milliseconds to the first token, and of each further one. Between two lines it sleeps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generation.language_runtimes import (
    Generate,
    litert_lm,
    llama_cpp,
    onnxruntime_genai,
    openvino_genai,
    timed,
)


def load(folder: Path, threads: int, device: str = "cpu") -> Any:
    """The model, as transformers loads it: float32 on a CPU, float16 on a GPU."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True).eval()
    return model.float() if device == "cpu" else model.half().to(device)


def edgecompile(bundle: Path, threads: int, _: int, device: str) -> Generate:
    """The shipped runtime."""
    from edgecompile.runtime import open_bundle

    model = open_bundle(bundle, threads=threads) if device == "cpu" else open_bundle(bundle)

    def generate(prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        marks = [time.perf_counter()]
        tokens = []
        for token in model.stream(prompt, max_new_tokens=count, do_sample=False, eos=()):
            tokens.append(int(token))
            marks.append(time.perf_counter())
        return tokens, [(b - a) * 1e3 for a, b in pairwise(marks)]

    return generate


def eager(folder: Path, threads: int, _: int, device: str) -> Generate:
    """torch with transformers' own cache, which grows."""
    import torch
    from transformers import DynamicCache

    model = load(folder, threads, device)
    state: dict[str, Any] = {}

    def run(tokens: list[int]) -> int:
        out = model(
            input_ids=torch.tensor([tokens], device=device),
            past_key_values=state["cache"],
            use_cache=True,
            logits_to_keep=1,
        )
        return int(out.logits[0, -1].argmax())

    def begin(prompt: list[int]) -> int:
        state["cache"] = DynamicCache(config=model.config)
        return run(prompt)

    return timed(begin, lambda token, _: run([token]))


def compiled(folder: Path, threads: int, context: int, device: str) -> Generate:
    """torch.compile with a static cache; prompts run eagerly, as transformers does it. On a GPU with graphs."""
    import torch
    from transformers import StaticCache

    model = load(folder, threads, device)
    mode = None if device == "cpu" else "reduce-overhead"
    step = torch.compile(model.forward, fullgraph=True, dynamic=False, mode=mode)
    state: dict[str, Any] = {}

    def run(forward: Any, tokens: list[int], position: int) -> int:
        places = torch.arange(position, position + len(tokens), device=device)
        out = forward(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=places[None],
            past_key_values=state["cache"],
            use_cache=True,
            logits_to_keep=1,
        )
        return int(out.logits[0, -1].argmax())

    def begin(prompt: list[int]) -> int:
        # One cache for all texts: another one would be compiled again.
        if "cache" in state:
            state["cache"].reset()
        else:
            state["cache"] = StaticCache(config=model.config, max_cache_len=context)
        return run(model.forward, prompt, 0)

    return timed(begin, lambda token, position: run(step, [token], position))


def export_onnx(folder: Path, target: Path, threads: int) -> None:
    """The decoder with keys and values of the past as inputs, and of all tokens as outputs."""
    import torch
    from transformers import DynamicCache

    model = load(folder, threads)

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, past: list[Any]) -> Any:
            cache = DynamicCache()
            for layer, (key, value) in enumerate(zip(past[::2], past[1::2], strict=True)):
                cache.update(key, value, layer)
            start = past[0].shape[2]
            places = torch.arange(start, start + input_ids.shape[1])[None]
            out = self.model(
                input_ids=input_ids,
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            return [out.logits[:, -1], *(t for x in cache.layers for t in (x.keys, x.values))]

    config = model.config
    heads = config.num_attention_heads
    shape = (1, heads, 5, config.hidden_size // heads)
    past = [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]
    new, old = torch.export.Dim("new", min=1, max=1024), torch.export.Dim("old", min=0, max=1024)
    program = torch.onnx.export(
        Decoder().eval(),
        (torch.zeros(1, 3, dtype=torch.int64), past),
        dynamo=True,
        dynamic_shapes=({1: new}, [{2: old} for _ in past]),
        optimize=True,
        verbose=False,
    )
    assert program is not None
    program.save(str(target))


def onnxruntime(folder: Path, threads: int, _: int, device: str) -> Generate:
    """ONNX Runtime on a CPU; what it gives as the present stays its own and is the next past."""
    import onnxruntime as ort

    target = folder / "decoder.onnx"
    if not target.exists():
        export_onnx(folder, target, threads)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(target), options, providers=["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), [item.name for item in session.get_outputs()]
    heads, width = (int(inputs[1].shape[index]) for index in (1, 3))
    state: dict[str, Any] = {}

    def run(tokens: list[int]) -> int:
        binding = session.io_binding()
        binding.bind_cpu_input(inputs[0].name, np.array([tokens], np.int64))
        for item, value in zip(inputs[1:], state["past"], strict=True):
            binding.bind_ortvalue_input(item.name, value)
        for name in outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        logits, *state["past"] = binding.get_outputs()
        return int(logits.numpy()[0].argmax())

    def begin(prompt: list[int]) -> int:
        nothing = np.zeros((1, heads, 0, width), np.float32)
        state["past"] = [ort.OrtValue.ortvalue_from_numpy(nothing) for _ in inputs[1:]]
        return run(prompt)

    return timed(begin, lambda token, _: run([token]))


CONTENDERS: dict[str, Callable[[Path, int, int, str], Generate]] = {
    "edgecompile": edgecompile,
    "eager": eager,
    "litert-lm": litert_lm,
    "llama.cpp": llama_cpp,
    "onnxruntime": onnxruntime,
    "onnxruntime-genai": onnxruntime_genai,
    "openvino-genai": openvino_genai,
    "torch.compile": compiled,
}


def main() -> None:
    """Serves requests until its input ends."""
    kind, path, threads, context, device = sys.argv[1:]
    generate = CONTENDERS[kind](Path(path), int(threads), int(context), device)
    for line in sys.stdin:
        request = json.loads(line)
        tokens, times = generate(request["prompt"], request["tokens"])
        answer = {"tokens": tokens, "first_ms": times[0], "step_ms": times[1:]}
        print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
