"""Runtimes for language models in few bits, as contenders of benchmarks/run generation.

Each takes a model that its own tools wrote (llama.cpp: a GGUF file; LiteRT-LM: what litert_file.py writes; ONNX
Runtime GenAI: the folder of its builder; OpenVINO GenAI: a GGUF file or a folder), and runs greedily past the end of
a text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Generate = Callable[[list[int], int], tuple[list[int], list[float]]]


def llama_cpp(file: Path, threads: int, context: int, _: str) -> Generate:
    """llama.cpp by llama-cpp-python's bindings of its C functions; weights are repacked at load, as by default."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(file).encode(), llama_cpp.llama_model_default_params()
    )
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch = context, context
    settings.n_threads = settings.n_threads_batch = threads
    state = llama_cpp.llama_init_from_model(model, settings)
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def run(tokens: list[int]) -> int:
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        if status := llama_cpp.llama_decode(state, llama_cpp.llama_batch_get_one(ids, len(tokens))):
            raise RuntimeError(f"llama_decode gave {status}")
        logits = llama_cpp.llama_get_logits_ith(state, -1)
        return int(np.ctypeslib.as_array(logits, shape=(size,)).argmax())

    def begin(prompt: list[int]) -> int:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(state), False)
        return run(prompt)

    return timed(begin, lambda token, _: run([token]))


def litert_lm(file: Path, threads: int, context: int, _: str) -> Generate:
    """LiteRT-LM on a CPU; tokens are written as their numbers. It gives each one after the next one's step."""
    import litert_lm as runtime

    runtime.set_min_log_severity(runtime.LogSeverity.ERROR)
    cpu = runtime.Backend.CPU(thread_count=threads)
    engine = runtime.Engine(str(file), cpu, max_num_tokens=context)
    greedy = runtime.SamplerConfig(top_k=1, top_p=1.0, temperature=0.0)

    def generate(prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        marks, tokens = [time.perf_counter()], []
        with engine.create_session(
            apply_prompt_template=False, sampler_config=greedy, max_output_tokens=count
        ) as session:
            session.run_prefill([" ".join(map(str, prompt))])
            for part in session.run_decode_async():
                tokens.append(int(part.texts[0]))
                marks.append(time.perf_counter())
        return tokens, [(b - a) * 1e3 for a, b in pairwise(marks)]

    return generate


def onnxruntime_genai(folder: Path, threads: int, context: int, _: str) -> Generate:
    """ONNX Runtime GenAI; the end of a text is put off by its shortest length."""
    import onnxruntime_genai as genai

    config = genai.Config(str(folder))
    session = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": session}}))
    model = genai.Model(config)

    def generate(prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        settings = genai.GeneratorParams(model)
        total = len(prompt) + count
        settings.set_search_options(do_sample=False, min_length=total, max_length=context)
        generator = genai.Generator(model, settings)
        marks, tokens = [time.perf_counter()], []
        generator.append_tokens(np.array(prompt, np.int32))
        while len(tokens) < count:
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            marks.append(time.perf_counter())
        return tokens, [(b - a) * 1e3 for a, b in pairwise(marks)]

    return generate


def openvino_genai(path: Path, threads: int, _: int, __: str) -> Generate:
    """OpenVINO GenAI; a streamer takes the time of each token."""
    import openvino
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads)
    marks: list[float] = []

    class Clock(genai.StreamerBase):  # type: ignore[misc]
        def write(self, token: Any) -> Any:
            marks.extend([time.perf_counter()] * (len(token) if isinstance(token, list) else 1))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    def generate(prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        settings = genai.GenerationConfig()
        settings.max_new_tokens, settings.ignore_eos, settings.do_sample = count, True, False
        ids = openvino.Tensor(np.array([prompt], np.int64))
        inputs = genai.TokenizedInputs(ids, openvino.Tensor(np.ones((1, len(prompt)), np.int64)))
        marks[:] = [time.perf_counter()]
        tokens = pipeline.generate(inputs, settings, Clock()).tokens[0]
        return list(tokens), [(b - a) * 1e3 for a, b in pairwise(marks)]

    return generate


def timed(begin: Callable[[list[int]], int], advance: Callable[[int, int], int]) -> Generate:
    """Greedy generation from a function that runs a prompt and one that runs a token."""

    def generate(prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        marks = [time.perf_counter()]
        tokens = [begin(prompt)]
        marks.append(time.perf_counter())
        while len(tokens) < count:
            tokens.append(advance(tokens[-1], len(prompt) + len(tokens) - 1))
            marks.append(time.perf_counter())
        return tokens, [(b - a) * 1e3 for a, b in pairwise(marks)]

    return generate
