"""Requests for new texts, and the texts and events that answer them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgecompile.runtime import open_bundle
from tests.server.http.asgi import Reply

PROMPT = "w3 w1 w4 w1 w5"


def expected(bundle: Path, count: int) -> list[int]:
    with open_bundle(bundle) as model:
        return model.generate([3, 1, 4, 1, 5], max_new_tokens=count, do_sample=False)


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "speaking", "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **changes}


def events(reply: Reply) -> list[dict[str, Any]]:
    """The events of a stream, whose last one says that it is done."""
    lines = [line for line in reply.body.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def words(ids: list[int]) -> str:
    """What follows the prompt: a word of each token, behind a space."""
    return "".join(f" w{item}" for item in ids)
