"""The models of benchmarks/run encoder, and the lengths that they are run at."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.texts import read_text_lengths
from examples.demo.inputs import find_model, write_docstrings

__all__ = ["PRESETS", "Preset", "make_bert", "read_docstring_lengths"]

#: BERT-base, uncased: the figures of Devlin et al., "BERT", 2018, which transformers has as defaults.
BERT_BASE: Final[Mapping[str, Any]] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Preset:
    """A model and its traffic.

    Attributes:
        title: of records.
        max_length: longest input of the bundle.
        find: the model's folder, given a folder for what has to be made.
        read: the lengths, given the model's folder.
    """

    title: str
    max_length: int
    find: Callable[[Path], Path]
    read: Callable[[Path], LengthDistribution]


def read_docstring_lengths(model: Path) -> LengthDistribution:
    """Tokens of every docstring of the standard library; the demo runs the same."""
    with tempfile.TemporaryDirectory(prefix="edgecompile-bench-") as folder:
        texts = Path(folder) / "docstrings.txt"
        write_docstrings(texts)
        counted = read_text_lengths(texts, model / "tokenizer.json")
    source = f"docstrings of Python {sys.version.split()[0]}'s standard library, in tokens"
    return LengthDistribution(counted.lengths, counted.counts, source)


def make_bert(folder: Path, config: Mapping[str, Any] = BERT_BASE) -> Path:
    """A BERT with random weights, always the same, in Hugging Face layout; made once.

    Args:
        folder: gets the model.
        config: of ``transformers.BertConfig``.
    """
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import BertConfig, BertModel

    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".bert-", dir=folder.parent))
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = BertModel(BertConfig(**config)).eval()
        model.save_pretrained(scratch)
        os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _four_lengths(_: Path) -> LengthDistribution:
    counts = dict.fromkeys((16, 32, 64, 128), 1)
    return LengthDistribution.from_counts(counts, "16, 32, 64 and 128, alike often")


PRESETS: Final[Mapping[str, Preset]] = {
    "minilm": Preset("all-MiniLM-L6-v2", 256, lambda _: find_model(), read_docstring_lengths),
    "bert-base": Preset(
        "BERT-base, random weights",
        128,
        lambda cache: make_bert(cache / "bert-base-random"),
        _four_lengths,
    ),
}
