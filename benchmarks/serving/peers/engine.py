"""ONNX Runtime on MiniLM's file, as every peer runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

#: Floats of an answer.
SIZE = 384


class Engine:
    """A session of its own, on so many threads."""

    def __init__(self, path: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self._session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self._names = {item.name for item in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name

    def run(self, texts: Sequence[Any]) -> Any:
        """The embeddings, [texts, SIZE], of arrays of token ids, filled up to the longest."""
        ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        return self.run_filled(ids, mask)

    def run_filled(self, ids: Any, mask: Any) -> Any:
        """The same of ids and masks that are filled up, [texts, longest]."""
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return self._session.run(
            [self._output], {name: array for name, array in inputs.items() if name in self._names}
        )[0]
