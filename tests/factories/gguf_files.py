"""Tiny GGUF files of random numbers, written by the package gguf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
TABLE = "token_embd"
_KV = HIDDEN * KV_HEADS // HEADS
#: Shapes of a layer's matrices.
MATRICES: Mapping[str, tuple[int, int]] = {
    "attn_q": (HIDDEN, HIDDEN), "attn_k": (_KV, HIDDEN), "attn_v": (_KV, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
}  # fmt: skip
CHAT = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
VALUES: Mapping[str, int | float] = {
    "block_count": LAYERS, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": INNER,
    "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.dimension_count": HIDDEN // HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
}  # fmt: skip


def vocabulary() -> list[str]:
    """Two special tokens, the 256 bytes as GPT-2 writes them, and one merged pair."""
    from tokenizers import pre_tokenizers

    return ["<|end|>", "<|start|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]


def write_gguf(
    path: Path,
    form_of: Callable[[str], str] = lambda name: "Q4_0",
    *,
    values: Mapping[str, int | float] = VALUES,
    tokens: Sequence[str] | None = None,
    change: Callable[[str, Any], Any] = lambda name, stored: stored,
    architecture: str = "llama",
) -> Path:
    """Writes a Llama with a vocabulary of bytes, tied unless ``form_of`` gives ``output`` a form.

    Args:
        path: the file.
        form_of: a function from a matrix' name without its layer, such as ``ffn_up``, to its form; "" leaves it out.
        values: metadata of the family.
        tokens: the vocabulary; None: that of :func:`vocabulary`.
        change: a function from the name of a tensor and its bytes to others.
        architecture: name of the family.

    Returns:
        Its path.
    """
    import gguf

    drawn = np.random.default_rng(5)
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in values.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    names = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(names if tokens is None else tokens)
    writer.add_token_types([3, 3, *[1] * (len(names) - 2)])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(CHAT)

    def add_matrix(name: str, form: str, shape: tuple[int, int]) -> None:
        numbers = (0.1 * drawn.standard_normal(shape)).astype(np.float32)
        kind = gguf.GGMLQuantizationType[form]
        if form in ("Q4_K", "Q6_K"):  # which gguf can't make
            block, size = gguf.GGML_QUANT_SIZES[kind]
            stored = drawn.integers(0, 60, (shape[0], shape[1] // block * size), np.uint8)
        else:
            stored = gguf.quants.quantize(numbers, kind)
        writer.add_tensor(f"{name}.weight", change(name, stored), raw_dtype=kind)

    def add_norm(name: str) -> None:
        numbers = np.float32(1) + np.float32(0.1) * drawn.standard_normal(HIDDEN, np.float32)
        writer.add_tensor(f"{name}.weight", change(name, numbers))

    add_matrix(TABLE, form_of(TABLE), (len(names), HIDDEN))
    add_norm("output_norm")
    if form_of("output") and form_of("output") != form_of(TABLE):
        add_matrix("output", form_of("output"), (len(names), HIDDEN))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            add_norm(f"blk.{layer}.{norm}")
        for name, shape in MATRICES.items():
            add_matrix(f"blk.{layer}.{name}", form_of(name), shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
