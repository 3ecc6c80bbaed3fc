"""The shared parts of the text protocols: lists of texts or token ids, and which output is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgecompile.runtime.format.manifest.schema import Manifest, TensorSpec
from edgecompile.runtime.text.encoder import Text, TokenizedText
from edgecompile.server.answers import TextAnswer
from edgecompile.server.errors import BadRequest, ServerError, TooLarge, Unprocessable
from edgecompile.server.protocol.documents import kind, shown

#: A text, or one of token ids.
Item = Text | TokenizedText
_MAX_ID = 1 << 31


def read_items(value: Any, key: str, most: int) -> tuple[list[Item], bool]:
    """Texts, or token ids; and whether it was one of them, not a list.

    Args:
        value: a text, a list of texts, a list of ids, or a list of lists of ids.
        key: the name of the field.
        most: the largest number of them.

    Raises:
        BadRequest: it is something else, or empty.
        TooLarge: they are too many.
    """
    if isinstance(value, str):
        return [value], True
    if not isinstance(value, list):
        raise BadRequest(f"{key} must be a text or a list, not {kind(value)}")
    if not value:
        raise BadRequest(f"{key} is empty")
    if type(value[0]) is int:
        return [read_ids(value, key)], True
    if len(value) > most:
        raise TooLarge(f"{key} has {len(value)} texts, the limit is {most}")
    items: list[Item] = []
    for index, item in enumerate(value):
        if isinstance(item, str):
            items.append(item)
        elif isinstance(item, list):
            items.append(read_ids(item, f"{key}[{index}]"))
        else:
            raise BadRequest(f"{key}[{index}] must be a text or token ids, not {kind(item)}")
    return items, False


def read_ids(value: list[Any], where: str) -> TokenizedText:
    """Token ids, special ones included.

    Raises:
        BadRequest: they aren't, or there are none.
    """
    if not value:
        raise BadRequest(f"{where} has no token ids")
    if any(type(item) is not int or not 0 <= item < _MAX_ID for item in value):
        raise BadRequest(f"{where} must be token ids, integers from 0 on")
    return TokenizedText(tuple(value), (0,) * len(value), ((0, 0),) * len(value), False)


def number(
    document: Mapping[str, Any], key: str, lo: float, hi: float, whole: bool, other: str = ""
) -> Any:
    """A number of a request, or None where it isn't given; ``other``: a further value, for the message.

    Raises:
        BadRequest: it is something else, or outside ``lo..hi``.
    """
    value = document.get(key)
    if value is None:
        return None
    if (type(value) is not int and (whole or type(value) is not float)) or not lo <= value <= hi:
        name = "an integer" if whole else "a number"
        raise BadRequest(f"{key} is {shown(value)}, must be {name} in {lo}..{hi}{other}")
    return value


def flag(document: Mapping[str, Any], key: str, default: bool) -> bool:
    """A request's true or false, or ``default`` where it isn't given.

    Raises:
        BadRequest: it is something else.
    """
    value = document.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadRequest(f"{key} must be true or false")
    return value


def read_truncate(document: Mapping[str, Any]) -> bool:
    """Whether the end of a text that is too long is cut off, rather than the text refused.

    Raises:
        BadRequest: it is something else.
        Unprocessable: texts are to be cut at their beginning.
    """
    side = document.get("truncation_direction")
    if side is not None and str(side).lower() != "right":
        raise Unprocessable("truncation_direction: texts are cut at their end alone (Right)")
    if document.get("truncate") == "START":
        raise Unprocessable("truncate: texts are cut at their end alone (END)")
    return flag(document, "truncate", True)


def read_prompt(document: Mapping[str, Any]) -> str | None:
    """The name of the prompt to put before each text.

    Raises:
        BadRequest: it is no text.
    """
    prompt = document.get("prompt_name")
    if prompt is not None and not isinstance(prompt, str):
        raise BadRequest(f"prompt_name must be a string, not {kind(prompt)}")
    return prompt


def count_tokens(answer: TextAnswer) -> dict[str, Any]:
    """The usage: tokens that were read, and positions of texts that were cut, if any."""
    tokens = sum(len(text.ids) for text in answer.texts)
    cut = {"truncated": answer.truncated} if answer.truncated else {}
    return {"prompt_tokens": tokens, "total_tokens": tokens, **cut}


def refuse_ids(other: str = "") -> NoReturn:
    """Refuses token ids: nothing says of which vocabulary they are.

    Args:
        other: another cure that the protocol has, as the end of the hint.

    Raises:
        Unprocessable: always.
    """
    raise Unprocessable(
        "token ids in place of texts aren't taken: they may be of another model's vocabulary, as those are "
        "that LangChain's OpenAIEmbeddings sends by default\n"
        "hint: send texts (LangChain: check_embedding_ctx_length=False); where all clients send ids of this "
        f"model's own vocabulary, start the server with --token-ids (Ray Serve: token_ids=1){other}"
    )


def scores_output(manifest: Manifest) -> TensorSpec:
    """The output that has a score for each class of a text: [batch, classes].

    Raises:
        Unprocessable: there is none.
    """
    for item in manifest.outputs:
        classes = item.name in manifest.labels or item.name in ("logits", "scores")
        if classes and len(item.shape) == 2 and isinstance(item.shape[1], int):
            return item
    raise Unprocessable(f"{manifest.name} gives no scores by text\nhint: it isn't a classifier")


def labels_of(manifest: Manifest, output: TensorSpec) -> Sequence[str]:
    """The names of the classes of ``scores_output``; where they have none numbers, as transformers gives them."""
    classes = output.shape[1]
    assert isinstance(classes, int)
    return manifest.labels.get(output.name) or [f"LABEL_{i}" for i in range(classes)]


def rank_output(manifest: Manifest) -> str:
    """The output that has one score for each text, by which texts can be ordered.

    Raises:
        Unprocessable: there is none; of several classes none is known to be the one that fits.
    """
    item = scores_output(manifest)
    if item.shape[1] != 1:
        raise Unprocessable(
            f"{manifest.name} gives {item.shape[1]} scores by text, a reranker gives one\n"
            "hint: /predict has the scores of all classes"
        )
    return item.name


def to_scores(name: str, rows: NDArray[Any], raw: bool) -> NDArray[Any]:
    """Scores [texts, classes] as text-embeddings-inference gives them.

    Logits get a sigmoid where there is one class and a softmax where there are several, unless
    ``raw``; what the model's own softmax made stays.

    Raises:
        Unprocessable: raw scores are wanted of a model that has none.
        ServerError: a score is NaN or infinite.
    """
    own = name.endswith("scores")
    if own and raw:
        raise Unprocessable("the bundle was built with --softmax and has no raw scores")
    return check_finite(rows if own or raw else _squash(rows))


def _squash(rows: NDArray[Any]) -> NDArray[Any]:
    wide = rows.astype(np.float64)
    if rows.shape[1] == 1:
        return 0.5 * (1 + np.tanh(wide / 2))  # the sigmoid, without overflow
    with np.errstate(invalid="ignore"):  # of infinities, refused below
        wide = np.exp(wide - wide.max(1, keepdims=True))
        scores: NDArray[Any] = wide / wide.sum(1, keepdims=True)
    return scores


def check_finite(rows: NDArray[Any]) -> NDArray[Any]:
    """The same rows.

    Raises:
        ServerError: one holds NaN or infinities.
    """
    if not np.isfinite(rows).all():  # JSON lacks them, and nothing can be ordered by NaN
        raise ServerError("the model gave NaN or infinities")
    return rows
