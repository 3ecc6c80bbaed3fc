"""gpu_properties: what is asked of a tensor on a GPU that isn't there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from edgecompile.backends.cuda import gpu_properties
from edgecompile.backends.cuda.gpu_properties import DEVICE, UNGUARDED


@pytest.mark.parametrize(
    "index",
    [
        1,
        (..., 0),
        (slice(None), None),
        (None, 0, ..., slice(1, None, 2)),
        (slice(-2, None), 1, slice(None, -1)),
        ...,
        (),
    ],
    ids=str,
)
def test_parts_of_a_tensor_are_those_of_torch(index: Any) -> None:
    want = torch.empty(3, 4, 5, 2)[index]
    with FakeTensorMode():
        got = UNGUARDED["__getitem__"](torch.empty(3, 4, 5, 2, device=DEVICE), index)
    assert got.device == DEVICE and got.shape == want.shape and got.stride() == want.stride()
    assert got.storage_offset() == want.storage_offset()


@pytest.mark.parametrize(
    "number", [torch.tensor(1), np.int64(1), True], ids=["tensor", "numpy", "bool"]
)
@pytest.mark.parametrize("place", range(4))
def test_numbers_of_other_types_are_left_to_torch(
    number: Any, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(gpu_properties, "_getitem", lambda *call: seen.append(call))
    bounds: list[Any] = [None, None, None]
    bounds[place % 3] = number
    index = (number, None) if place == 3 else (slice(*bounds), 0)
    with FakeTensorMode():
        x = torch.empty(3, 4, device=DEVICE)
        UNGUARDED["__getitem__"](x, index)
    ((tensor, given),) = seen
    assert tensor is x and given is index
