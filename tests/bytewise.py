"""The decoder of tests/generative.py with a tokenizer whose tokens are bytes, and a template that takes tools."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from edgecompile.runtime.format.manifest.text import CHAT_FILE
from tests.generative import EOS, replace_files

#: Token 0 is the padding and token 7 the end, as for the decoder.
LETTERS = [*'{}[]":', *",-.\\0123456789", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ"]
MERGES = [("{", '"'), ('"', ":"), ('"', ","), ("t", "r"), ("u", "e"), ("tr", "ue"), ("n", "u")]
CALL, END_OF_CALL, START, END = "<tool_call>", "</tool_call>", "<|start|>", "<|end|>"
#: Written as Hermes' and Qwen's are.
TEMPLATE = """
{%- if tools %}<|start|>tools{% for tool in tools %}
{{ tool.function.name }}{% endfor %}<|end|>
{% endif %}
{%- for m in messages %}<|start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{ '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- call.function.arguments | tojson ~ '}\n</tool_call>' }}
{%- endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}"""


def make_tokenizer() -> Any:
    """A byte-level tokenizer of 61 tokens; of capitals and most signs it has none."""
    import tokenizers

    words = ["<pad>", *LETTERS, *(a + b for a, b in MERGES), CALL, END_OF_CALL, START, END]
    words.insert(EOS, "<eos>")
    model = tokenizers.models.BPE({word: index for index, word in enumerate(words)}, MERGES)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<eos>", START, END])
    tokenizer.add_tokens([CALL, END_OF_CALL])
    return tokenizer


def build_bytewise(
    decoder: Path, folder: Path, template: str = TEMPLATE, turns: dict[str, Any] | None = None
) -> None:
    """Copies the decoder's bundle, and puts the tokenizer and a template into it, with its turns if there are."""
    shutil.copytree(decoder, folder, copy_function=os.link)
    document = json.loads((folder / "manifest.json").read_bytes())
    document["name"] = "bytewise"
    document["text"] = {
        "tokenizer": "tokenizer.json",
        "max_length": 32,
        "pad_id": 0,
        "inputs": {"input_ids": "ids"},
    }
    (folder / CHAT_FILE).parent.mkdir()
    chat: dict[str, Any] = {"template": template, "special_tokens": {}}
    if turns is not None:
        chat["turns"] = turns
    replace_files(
        folder,
        document,
        {
            "tokenizer.json": make_tokenizer().to_str().encode(),
            CHAT_FILE: json.dumps(chat).encode(),
        },
    )
