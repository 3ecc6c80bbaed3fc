"""gpu_properties: what is asked of a tensor on a GPU that isn't there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

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
