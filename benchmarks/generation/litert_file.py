"""Writes what LiteRT-LM opens in benchmarks/run generation: a model folder in four bits.

    pip install litert-torch tensorflow-cpu    # in an environment of its own
    python benchmarks/generation/litert_file.py FOLDER smol.litertlm
    benchmarks/run generation --model FOLDER --context 2048 --against edgecompile litert-lm --path litert-lm smol.litertlm

Weights are int4 in blocks of 32, and the head, which is also the embedding, is int8. Activations become int8 as
they are multiplied. Each step reads and writes all rows of the caches, so compare with no more than a prompt needs:
`--context 256` for prompts of up to 128. LiteRT-LM takes and gives texts alone, so the file's tokenizer writes each
token as its number. No token ends a text.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

#: Lengths that prompts are cut into; a prompt's rest fills the shortest that holds it.
CHUNKS = [16, 64, 128, 256, 512]


def write_recipe(target: Path) -> Path:
    """What the quantizer does with each kind of weights; later lines win."""
    from ai_edge_quantizer import recipe

    matmul = recipe.TFLOperationName.FULLY_CONNECTED
    lookup = recipe.TFLOperationName.EMBEDDING_LOOKUP
    lines = [
        *recipe.dynamic_wi4b32_afp32(operation_name=matmul),
        # The two share their numbers only in one precision.
        *recipe.dynamic_wi8c_afp32(regex="logits_output", operation_name=matmul),
        *recipe.dynamic_wi8c_afp32(operation_name=lookup),
    ]
    target.write_text(json.dumps(lines))
    return target


def write_numbers(target: Path, size: int) -> Path:
    """A tokenizer of `size` words, the numbers of the tokens."""
    words = {str(token): token for token in range(size)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "0"}
    parts = {"normalizer": None, "post_processor": None, "decoder": None, "added_tokens": []}
    cut = {"pre_tokenizer": {"type": "WhitespaceSplit"}}
    target.write_text(json.dumps({"version": "1.0", **parts, **cut, "model": model}))
    return target


def main() -> None:
    """Exports, rounds and packs."""
    parser = argparse.ArgumentParser(description="Write a model folder as a file for LiteRT-LM.")
    parser.add_argument("model", type=Path, help="a folder that transformers opens")
    parser.add_argument("file", type=Path, help="to write")
    parser.add_argument("--context", type=int, default=2048, help="rows of caches (default 2048)")
    options = parser.parse_args()
    from litert_torch.generative.export_hf.export import export

    size = json.loads((options.model / "config.json").read_text())["vocab_size"]
    # The runtime wants a token that ends texts: this one is never generated.
    metadata = (
        f"max_num_tokens: {options.context} stop_tokens {{ token_ids {{ ids: {size} }} }}"
        " llm_model_type { generic_model {} }"
    )
    with tempfile.TemporaryDirectory(dir=options.file.absolute().parent) as work:
        export(
            model=str(options.model),
            output_dir=work,
            prefill_lengths=[length for length in CHUNKS if length <= options.context],
            cache_length=options.context,
            quantization_recipe=str(write_recipe(Path(work, "recipe.json"))),
            tokenizer_path_override=str(write_numbers(Path(work, "numbers.json"), size)),
            litert_lm_llm_metadata_override=metadata,
        )
        shutil.move(Path(work, "model.litertlm"), options.file)


if __name__ == "__main__":
    main()
