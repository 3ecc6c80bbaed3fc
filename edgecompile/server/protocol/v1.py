"""KServe's protocol V1, …:predict: instances to rows, rows to predictions.

Source: kserve.github.io, "V1 Inference Protocol", which is TensorFlow Serving's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.server.errors import BadRequest, TooLarge, Unprocessable
from edgecompile.server.protocol.datatypes import NAMES
from edgecompile.server.protocol.documents import dump, kind, load_object, required
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.tensors import from_list, read_shape
from edgecompile.server.protocol.texts import refuse_ids

_FIELDS = Fields("instances", plain={"signature_name": ("serving_default",)})
_MAX_LEVELS = 16

Row = dict[str, NDArray[Any]]


def read_instances(
    body: bytes, manifest: Manifest, instances: int, elements: int, token_ids: bool
) -> list[str] | list[Row]:
    """Texts, or the inputs of each instance as a batch of one.

    Args:
        body: JSON.
        manifest: the manifest of the model.
        instances: the largest number of instances.
        elements: the largest number of elements of all tensors together.
        token_ids: whether ids without the name of their input are taken, where texts may come.

    Raises:
        BadRequest, TooLarge: something is wrong with it.
        Unprocessable: the model's inputs aren't batches of rows; or it gives ids in place of texts.
    """
    document = load_object(body)
    value = required(document, "instances")
    _FIELDS.check(document)
    if not isinstance(value, list) or not value:
        raise BadRequest("instances must be a list of at least one instance")
    if len(value) > instances:
        raise TooLarge(f"instances has {len(value)} instances, the limit is {instances}")
    if all(isinstance(item, str) for item in value):
        return value
    name = manifest.inputs[0].name
    if manifest.text is not None and manifest.text.inputs.get(name) == "ids":
        for index, item in enumerate(value):
            if type(item) in (int, list) and not token_ids:
                refuse_ids(f'; or name the input: {{"{name}": […]}}')
            if not isinstance(item, (str, list, dict)):
                forms = f'a text or an object such as {{"{name}": […]}}'
                raise BadRequest(f"instances[{index}] must be {forms}, not {kind(item)}")
    if any(isinstance(item, str) for item in value):
        raise BadRequest("instances holds texts and others: send each kind in a request of its own")
    firsts = {item.shape[:1] for item in (*manifest.inputs, *manifest.outputs)}
    # A length that comes first is no batch, unless the traffic is counted in rows.
    alone = (manifest.length_axis,) in firsts and manifest.length_axis != "batch"
    if len(firsts) > 1 or () in firsts or alone:
        raise Unprocessable(
            f"{manifest.name} takes no rows of a batch, which instances are\n"
            "hint: /v2/models/NAME/infer takes its tensors as they are"
        )
    rows: list[Row] = []
    left = elements
    for index, item in enumerate(value):
        rows.append(_read_row(item, manifest, f"instances[{index}]", left))
        left -= sum(array.size for array in rows[-1].values())
    return rows


def _read_row(value: Any, manifest: Manifest, where: str, most: int) -> Row:
    names = [item.name for item in manifest.inputs]
    # A mask may be left out: which inputs are missing is the model's to say.
    given = value if isinstance(value, dict) else {names[0]: value}
    for name in given:
        if name not in names:
            raise BadRequest(f"{where} has {name:.80}, the inputs are {', '.join(names)}")
    row = {}
    for item in manifest.inputs:
        if item.name not in given:
            continue
        place = f"{where}.{item.name}"
        level, sizes = given[item.name], [1]
        data = [level]
        while isinstance(level, list) and len(sizes) < _MAX_LEVELS:
            sizes.append(len(level))
            level = level[0] if level else None
        shape = read_shape(sizes, place, most)
        most -= int(np.prod(shape))
        row[item.name] = from_list(data, NAMES.get(item.dtype, item.dtype), shape, place)
    return row


def group_rows(rows: Sequence[Row], manifest: Manifest) -> list[list[int]]:
    """The rows of each batch: those of the same shapes, as many as the model takes at once."""
    first = manifest.inputs[0].shape[0]
    axis = manifest.axes.get(first) if isinstance(first, str) else None
    most = first if isinstance(first, int) else 1 if axis is None else axis.hi
    alike: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        shapes = tuple((name, array.shape) for name, array in row.items())
        alike.setdefault(shapes, []).append(index)
    return [
        indices[at : at + most] for indices in alike.values() for at in range(0, len(indices), most)
    ]


def join_rows(rows: Sequence[Row]) -> Row:
    """Rows of the same shapes as a batch."""
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def format_predictions(rows: Sequence[Mapping[str, NDArray[Any]]]) -> bytes:
    """The answer: a model's one output of each instance, or all of them by name.

    Raises:
        Unprocessable: one holds NaN or infinities, which JSON lacks.
    """
    for row in rows:
        for name, array in row.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Unprocessable(f"{name} holds NaN or infinities, which JSON lacks")
    plain = [
        {name: array.copy() if array.ndim else array.item() for name, array in row.items()}
        for row in rows
    ]
    return dump(
        {"predictions": [next(iter(row.values())) if len(row) == 1 else row for row in plain]}
    )
