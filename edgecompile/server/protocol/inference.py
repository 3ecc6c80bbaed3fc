"""Answers to …/infer, over HTTP and gRPC alike: tensors, or texts as one tensor of BYTES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.server.answers import Answer, TextAnswer
from edgecompile.server.errors import BadRequest, TooLarge, Unprocessable
from edgecompile.server.serving import ServedModel


async def infer(
    model: ServedModel,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str] | None,
    *,
    deadline: float | None,
    priority: int,
    most: int,
) -> tuple[Answer | TextAnswer, dict[str, NDArray[Any]]]:
    """Runs a request; the answer with its times, and the outputs that are wanted.

    Args:
        model: runs it.
        inputs: the inputs by name; those of type BYTES hold strings.
        outputs: names of outputs; None: all.
        deadline, priority: the arguments of ``ServedModel.infer``.
        most: texts.

    Raises:
        Whatever ``ServedModel.infer``, ``ServedModel.encode``, ``check_texts`` and ``stack`` raise.
    """
    texts = check_texts(inputs, most)
    if texts is None:
        answer = await model.infer(inputs, outputs=outputs, deadline=deadline, priority=priority)
        return answer, answer.outputs
    model.check_outputs(outputs)
    text_answer = await model.encode(texts, deadline=deadline, priority=priority)
    names = outputs or [item.name for item in model.model.manifest.outputs]
    return text_answer, {name: stack(text_answer, name) for name in names}


def check_texts(inputs: Mapping[str, NDArray[Any]], most: int) -> list[str] | None:
    """The texts of a request whose one input is of BYTES; None: it has no such input.

    Raises:
        BadRequest: it has others beside it, or it isn't a list of one text at least.
        TooLarge: it has over ``most`` texts.
    """
    for array in inputs.values():
        if array.dtype == object:
            break
    else:
        return None
    (array, *others) = inputs.values()
    if others or array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1) or not array.ndim:
        raise BadRequest("texts are one input of BYTES with the shape [texts], and no other one")
    if not array.size:
        raise BadRequest("the input of BYTES holds no text")
    if array.size > most:
        raise TooLarge(f"{array.size} texts, the limit is {most}")
    return [str(item) for item in array.ravel()]


def stack(answer: TextAnswer, name: str) -> NDArray[Any]:
    """An output of all texts as one array [texts, …].

    Raises:
        Unprocessable: it has a size of its own for each text.
    """
    rows = [item[name] for item in answer.outputs]
    if len({row.shape for row in rows}) > 1:
        raise Unprocessable(f"{name} has a size of its own for each text: ask for them one by one")
    return np.stack(rows)
