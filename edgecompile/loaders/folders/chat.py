"""The chat template of a language model's folder, and the special tokens that it may name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import optional_object
from edgecompile.loaders.folders.turns import find_turns
from edgecompile.runtime.format.manifest.text import MAX_CHAT_BYTES

_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def read_chat(folder: Path) -> bytes | None:
    """The content of ``CHAT_FILE`` as FORMAT.md has it; None: the folder has no template.

    It is looked for where transformers does: in chat_template.jinja, chat_template.json and
    tokenizer_config.json. Of several in a list the one called "default" is taken.

    Raises:
        ModelError: a file can't be read, or is too large for a bundle.
    """
    config = optional_object(folder / "tokenizer_config.json", "the tokenizer's configuration")
    template: Any = config.get("chat_template")
    other = optional_object(folder / "chat_template.json", "the chat template")
    template = other.get("chat_template", template)
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            template = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"'{file}' isn't UTF-8: byte {error.start}") from None
    if isinstance(template, list):
        named = {item.get("name"): item for item in template if isinstance(item, dict)}
        template = named.get("default", {}).get("template")
    if not isinstance(template, str):
        return None
    settings = {
        **optional_object(folder / "special_tokens_map.json", "the special tokens"),
        **config,
    }
    tokens = {}
    for name in (f"{kind}_token" for kind in _TOKENS):
        token = settings.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            tokens[name] = token
    chat = {"template": template, "special_tokens": tokens, "turns": find_turns(template, tokens)}
    data = json.dumps(
        {key: chat[key] for key in chat if chat[key] is not None}, sort_keys=True
    ).encode()
    if len(data) > MAX_CHAT_BYTES:
        raise ModelError(
            f"'{folder}' has a chat template of {len(data)} bytes, a bundle takes {MAX_CHAT_BYTES} at "
            "most",
            hint="`keep_tokenizer=False` leaves it out",
        )
    return data
