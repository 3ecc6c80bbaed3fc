"""OpenAI's /v1/completions and /v1/chat/completions: requests, answers, server-sent events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from edgecompile.runtime.generation.sampling import MAX_SEED
from edgecompile.runtime.text.prompts import ALL
from edgecompile.runtime.text.tools import Call
from edgecompile.server.errors import BadRequest, Unprocessable
from edgecompile.server.generation_request import Generation
from edgecompile.server.protocol.documents import dump, kind, load_object, required
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.openai import read_model
from edgecompile.server.protocol.structured import FIELDS, read_grammar
from edgecompile.server.protocol.texts import flag, number, read_ids
from edgecompile.server.protocol.tools import format_calls, read_calls, read_tools

DONE = b"data: [DONE]\n\n"
_MAX_STOPS = 16
_ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_TOKENS = (1 << 31) - 1
_DONE = (
    "model max_tokens max_completion_tokens temperature top_p top_k repetition_penalty seed stop stream "
    "stream_options " + FIELDS
)
#: Of llama.cpp's settings those say how, and others of it whether, which is refused.
_IDLE = """
    user safety_identifier metadata store service_tier prediction prompt_cache_key
    prompt_cache_retention request_id priority cache_salt keep_alive cache_prompt id_slot mirostat_tau
    mirostat_eta dynatemp_exponent xtc_threshold dry_base dry_allowed_length dry_penalty_last_n
    dry_sequence_breakers
"""
_PLAIN: dict[str, tuple[Any, ...]] = {
    # OpenAI's.
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),  # a text's 0 asks for those of the chosen tokens
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({}, []),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    # vLLM's, and of other servers with these routes.
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "num_beams": (1,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "no_repeat_ngram_size": (0,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "include_reasoning": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    # llama.cpp's.
    "grammar": ("",),
    "repeat_penalty": (1,),
    "repeat_last_n": (-1,),
    "typical_p": (1,),
    "top_n_sigma": (-1,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "dynatemp_range": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "tfs_z": (1,),
    "top_a": (0,),
    "n_probs": (0,),
    "n_keep": (0,),
    "penalize_nl": (False,),
}
_COMPLETION = Fields(
    _DONE + " prompt", _IDLE + " parallel_tool_calls", {**_PLAIN, "add_special_tokens": (True,)}
)
_CHAT = Fields(
    _DONE + " messages tools tool_choice parallel_tool_calls",
    _IDLE,
    {**_PLAIN, "add_special_tokens": (False,)},
)
_STREAM = Fields("include_usage", "include_obfuscation", {"continuous_usage_stats": (False,)})


@dataclass(frozen=True)
class CompletionRequest:
    """A text to go on from, or a chat."""

    model: str | None
    generation: Generation
    stream: bool
    with_usage: bool


def read_completion(body: bytes, chat: bool) -> CompletionRequest:
    """Reads a body of /v1/completions, or of /v1/chat/completions.

    Raises:
        BadRequest: something is wrong with it.
        Unprocessable: it asks for what isn't done here.
    """
    document = load_object(body)
    value = required(document, "messages" if chat else "prompt")
    old_tools = (("function_call", "functions"), *(() if chat else (("tool_choice", "tools"),)))
    for choice, tools in old_tools:
        if document.get(choice) == "none":  # then they aren't to be called
            document.pop(tools, None)
    (_CHAT if chat else _COMPLETION).check(document)
    stream = flag(document, "stream", False)
    extra = document.get("stream_options")
    if not isinstance(extra, dict | None):
        raise BadRequest(f"stream_options must be an object, not {kind(extra)}")
    extra = extra or {}
    _STREAM.check(extra, "stream_options.")
    with_usage = flag(extra, "include_usage", False)
    prompt = _read_messages(value) if chat else _read_prompt(value)
    grammar, callable_tools = read_grammar(document), read_tools(document) if chat else None
    if grammar and callable_tools is not None:
        raise Unprocessable("an answer of a given form isn't supported together with tools")
    old = document.get("max_completion_tokens") is None
    key = "max_tokens" if old else "max_completion_tokens"
    # llama.cpp's -1: as far as the context reaches.
    most = ALL
    if document.get(key) != -1:
        most = number(document, key, 1, _MAX_TOKENS, True, ", or -1")
    best = number(document, "top_k", -1, (1 << 31) - 1, True)
    options: dict[str, Any] = {
        # OpenAI's defaults: of a chat there is none.
        "max_new_tokens": _default(most, None if chat else 16),
        "temperature": _default(number(document, "temperature", 0, 100, False), 1.0),
        "top_p": number(document, "top_p", 1e-6, 1, False),
        "top_k": 0 if best == -1 else best,  # vLLM's -1 means all, too
        "repetition_penalty": number(document, "repetition_penalty", 0.01, 100, False),
        "seed": _read_seed(document),
    }
    return CompletionRequest(
        read_model(document),
        Generation(prompt, _read_stop(document.get("stop")), options, grammar, callable_tools),
        stream,
        with_usage,
    )


def _read_seed(document: dict[str, Any]) -> int | None:
    """The seed as the runtime takes it; -1 is none, as for llama.cpp."""
    seed = number(document, "seed", -(1 << 63), (1 << 63) - 1, True)
    if seed is None or 0 <= seed <= MAX_SEED:
        return seed  # type: ignore[no-any-return]
    return None if seed == -1 else crc32(seed.to_bytes(8, "little", signed=True))


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _read_prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and isinstance(value[0], int):
        return read_ids(value, "prompt").ids
    if isinstance(value, list) and len(value) > 1:
        raise Unprocessable("prompt: one text a request")
    raise BadRequest("prompt must be a text or token ids")


def _read_messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise BadRequest("messages must be a list of at least one message")
    messages = []
    for index, item in enumerate(value):
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            raise BadRequest(f"messages[{index}] must be an object with a role")
        if item["role"] not in _ROLES:
            roles = ", ".join(_ROLES)
            raise BadRequest(
                f"messages[{index}]: the role {item['role']!r:.80} isn't one of {roles}"
            )
        for key in ("prefix", "partial"):  # the answer would go on from this message
            if item.get(key):
                raise Unprocessable(f"messages[{index}].{key} isn't supported")
        # A template asks whether a field is there, and clients send answers back with all that are empty.
        kept = {key: value for key, value in item.items() if value not in (None, [])}
        if "tool_calls" in kept:
            if item["role"] != "assistant":
                raise BadRequest(f"messages[{index}]: tool_calls are for an assistant")
            kept["tool_calls"] = read_calls(item["tool_calls"], f"messages[{index}].tool_calls")
        content = item.get("content")
        if content is None and item["role"] == "assistant":
            content = ""
        messages.append({**kept, "content": _read_content(content, index)})
    return messages


def _read_content(value: Any, index: int) -> str:
    """A message's text; the texts of a list of parts stand below each other."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise BadRequest(f"messages[{index}]: content must be a text, not {kind(value)}")
    parts = [part if isinstance(part, dict) else {} for part in value]
    if other := [part["type"] for part in parts if part.get("type", "text") != "text"]:
        raise Unprocessable(
            f"messages[{index}]: no content of type {other[0]!r:.80} here, text alone"
        )
    if not all(isinstance(part.get("text"), str) for part in parts):
        raise BadRequest(f"messages[{index}]: a part of the content must be an object with a text")
    return "\n".join(part["text"] for part in parts)


def _read_stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > _MAX_STOPS
        or any(not isinstance(item, str) or not item for item in stops)
    ):
        raise BadRequest(f"stop must be a text or a list of at most {_MAX_STOPS} texts")
    return tuple(stops)


@dataclass(frozen=True)
class Frame:
    """The fields that all answers to one request have in common."""

    id: str
    created: int
    model: str
    chat: bool

    def whole(
        self, text: str, reason: str, usage: Mapping[str, int], calls: Sequence[Call] = ()
    ) -> bytes:
        """The one answer."""
        content: dict[str, Any] = {"text": text}
        if self.chat:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if calls:
                message = {**message, "content": text or None, "tool_calls": format_calls(calls)}
            content = {"message": message}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        kind = "chat.completion" if self.chat else "text_completion"
        return dump({**self._head(kind), "choices": [choice], "usage": usage})

    def event(
        self,
        text: str,
        reason: str | None,
        first: bool,
        calls: Sequence[Call] = (),
        before: int = 0,
    ) -> bytes:
        """A piece of it, as a server-sent event; ``before`` is the number of calls in earlier ones."""
        content: dict[str, Any] = {"text": text}
        if self.chat:
            role = {"role": "assistant"} if first else {}
            delta: dict[str, Any] = {**role, "content": text}
            if calls:
                called = format_calls(calls, before)
                delta = {**role, **({"content": text} if text else {}), "tool_calls": called}
            content = {"delta": delta}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        return self._event([choice])

    def usage(self, usage: Mapping[str, int]) -> bytes:
        """The last event where usage was asked for."""
        return self._event([], usage=usage)

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return b"data: %b\n\n" % dump({**self._head(kind), "choices": choices, **more})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(prompt: int, new: int) -> dict[str, int]:
    """The numbers of tokens of the prompt and of the answer."""
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
