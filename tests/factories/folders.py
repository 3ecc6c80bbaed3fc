"""Tiny model folders in Hugging Face layout, written from transformers' configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.factories.outliers import add_outliers

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "purred", "quietly", "all", "day")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
VOCABULARY = 40
HIDDEN = 16
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}


def write_model(folder: Path, kind: str = "bert", head: str = "Model", **changes: Any) -> Path:
    """Writes config.json and model.safetensors of a random model; the same weights every time.

    Args:
        folder: where to write; made if missing.
        kind: bert, roberta, mpnet, distilbert, gpt2 or t5.
        head: what follows the family's name in the class, such as ForSequenceClassification.
        changes: settings of the configuration.
    """
    prefix, settings = _FAMILIES[kind]
    config = getattr(transformers, prefix + "Config")(**{**settings, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(transformers, prefix + head)(config)
        # Biases and norms start at 0 and 1, which hides mistakes.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        if kind in _NORMS_FIRST:
            add_outliers(model)
    model.save_pretrained(folder)
    return folder


#: Kinds whose norms stand before their layers, and take back what a residual stream has too much.
_NORMS_FIRST = ("gpt2", "t5")


def write_tokenizer(folder: Path, *, truncate: int | None = 4) -> Path:
    """Writes a tokenizer.json of one token per word, two special ones around; by default it asks
    for truncation and padding, as those of sentence encoders do."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    if truncate is not None:
        tokenizer.enable_truncation(truncate)
        tokenizer.enable_padding(length=truncate)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def write_pipeline(folder: Path, modules: list[tuple[str, dict[str, Any]]]) -> Path:
    """Makes a model folder a sentence-transformers one: ``modules`` follow the transformer.

    Each is the type's name and its config.json; a Dense gets random weights.
    """
    entries = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    for index, (kind, config) in enumerate(modules, start=1):
        path = folder / f"{index}_{kind}"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        if kind == "Dense":
            shape = config["out_features"], config["in_features"]
            generator = torch.Generator().manual_seed(index)
            weights = {
                "linear.weight": torch.randn(shape, generator=generator),
                "linear.bias": torch.randn(shape[0], generator=generator),
            }
            save_file(weights, path / "model.safetensors")
        kind = kind if "." in kind else f"sentence_transformers.models.{kind}"
        entries.append({"idx": index, "path": path.name, "type": kind})
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _SIZES),
    "roberta": ("Roberta", {**_SIZES, "pad_token_id": 1}),
    "mpnet": ("MPNet", {**_SIZES, "pad_token_id": 1}),
    "distilbert": (
        "DistilBert",
        {
            "vocab_size": VOCABULARY,
            "dim": HIDDEN,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 32,
            "max_position_embeddings": 40,
            "pad_token_id": 0,
        },
    ),
    "gpt2": (
        "GPT2",
        {
            "vocab_size": VOCABULARY,
            "n_embd": HIDDEN,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 40,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "t5": (
        "T5",
        {
            "vocab_size": VOCABULARY,
            "d_model": HIDDEN,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 2,
            "pad_token_id": 0,
        },
    ),
}
