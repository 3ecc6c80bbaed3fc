"""A bundle's model whose runs ONNX Runtime does, so that our scheduler runs another engine.

With the rule "tei" it is text-embeddings-inference's way on a CPU, as its source has it (backends/ort/src/lib.rs at
04a0215; core/src/queue.rs): one session with ``num_cpus::get()`` threads within an operator and all of ONNX Runtime's
optimizations (Level3), behind a mutex, so one run at a time; batches of up to 8 (``max_batch_size``) in the order of
arrival, filled up to the longest, masked. Its HTTP, tokenizer and pooling in Rust aren't here: ours are beside no engine
either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile.runtime import Model

if TYPE_CHECKING:
    from benchmarks.serving.peers.engine import Engine


class AroundOnnx:
    """What the scheduler asks of a model; everything but its runs is the bundle's."""

    def __init__(self, model: Model, engine: Engine) -> None:
        self._model, self._engine = model, engine
        self._output = model.manifest.outputs[0].name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, inputs: Mapping[str, Any], *, threads: int = 0) -> dict[str, Any]:
        """A batch; ``threads`` are the session's own, whatever is asked for."""
        embeddings = self._engine.run_filled(inputs["input_ids"], inputs["attention_mask"])
        return {self._output: embeddings}


def open_onnx(model: Model, file: Path) -> AroundOnnx:
    """Of an ONNX file of the same model, on as many threads as the bundle has."""
    from benchmarks.serving.peers.engine import Engine

    return AroundOnnx(model, Engine(str(file), int(model.info["threads"])))
