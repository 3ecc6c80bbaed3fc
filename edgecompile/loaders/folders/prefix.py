"""The tokens of a prompt that texts will begin with, from a file of a person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgecompile.errors import EdgecompileError, ModelError
from edgecompile.lengths.texts import load_tokenizer
from edgecompile.loaders.folders.chat import read_chat
from edgecompile.runtime.generation.prefix import count_common
from edgecompile.runtime.text.chat import Chat, ChatEncoder

#: Continuations of the prompt. Its last tokens may depend on them, and aren't part of it then.
_CONTINUATIONS = ("a", " 7 b", "\n- Z", "<é")


def read_prefix(file: Path, tokenizer: Path) -> tuple[int, ...]:
    """The tokens that all continuations of a prompt begin with.

    Args:
        file: Path of the prompt: a UTF-8 text, whose last line end doesn't count; or, with the ending
            ``.json``, a list of messages, such as one of the role "system".
        tokenizer: Path of the model's ``tokenizer.json``.

    Raises:
        ModelError: the file can't be read as one of these, the chat template refuses it, or no token is common.
        MissingDependencyError: the package tokenizers isn't installed.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"the prefix '{file}' isn't UTF-8: byte {error.start}") from None
    except OSError as error:
        raise ModelError(f"the prefix '{file}' can't be read: {error.strerror}") from None
    encoder = load_tokenizer(tokenizer)
    if file.suffix.lower() == ".json":
        prompts = _read_chats(file, text, encoder, tokenizer.parent)
    else:
        begun = text.removesuffix("\n").removesuffix("\r")
        if not begun:
            raise ModelError(f"the prefix '{file}' is empty")
        prompts = [encoder.encode(begun + more).ids for more in _CONTINUATIONS]
    tokens: tuple[int, ...] = tuple(prompts[0])
    for prompt in prompts[1:]:
        tokens = tokens[: count_common(tokens, prompt)]
    if not tokens:
        raise ModelError(f"the prefix '{file}' gives no token that every prompt would begin with")
    return tokens


def _read_chats(file: Path, text: str, encoder: Any, folder: Path) -> list[list[int]]:
    hint = 'such as [{"role": "system", "content": "You are helpful."}]'
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the prefix '{file}' isn't JSON: {error}", hint=hint) from None
    if not isinstance(messages, list) or not messages:
        raise ModelError(f"the prefix '{file}' must be a list of messages", hint=hint)
    data = read_chat(folder)
    if data is None:
        raise ModelError(
            f"the prefix '{file}' is a chat, and '{folder}' has no chat template",
            hint="give a text, in a file with another ending than .json",
        )
    chat, chats = Chat(folder.name, json.loads(data)), ChatEncoder(encoder)
    try:
        return [
            chats.encode(chat.pieces([*messages, {"role": "user", "content": more.strip()}]))
            for more in _CONTINUATIONS
        ]
    except EdgecompileError as error:
        raise ModelError(
            f"the prefix '{file}' isn't a chat of this model: {error.message}", hint=error.hint
        ) from None
