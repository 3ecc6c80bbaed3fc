"""The table of backends, and which of them a build takes."""

from __future__ import annotations

import pytest

from edgecompile.backends import BACKENDS as NAMES
from edgecompile.backends import CPU_BACKENDS
from edgecompile.errors import UsageError
from edgecompile.pipeline.backends import BACKENDS, find_backends
from edgecompile.planning.request import PlanRequest
from edgecompile.targets.profile import load_target


@pytest.mark.parametrize(
    ("target", "backend", "found"),
    [
        ("cpu-x86-64", "auto", ["cpu"]),
        ("cpu-x86-64", "cpu", ["cpu"]),
        ("cpu-x86-64", "torch", ["torch"]),
        ("jetson-orin", "auto", ["tensorrt", "cpu"]),
        ("jetson-orin", "tensorrt", ["tensorrt", "cpu"]),
        ("cuda-sm90", "triton", ["triton", "cpu"]),
        ("jetson-orin", "both", ["tensorrt", "triton", "cpu"]),
    ],
)
def test_each_name_stands_for_backends_of_the_table(
    target: str, backend: str, found: list[str]
) -> None:
    request, profile = PlanRequest(None, backend=backend), load_target(target)
    request.check_target(profile)
    assert find_backends(request, profile) == [BACKENDS[name] for name in found]


@pytest.mark.parametrize("backend", NAMES[1:])
def test_a_backend_of_other_processors_is_refused_by_name(backend: str) -> None:
    other = "jetson-orin" if backend in CPU_BACKENDS else "cpu-x86-64"
    with pytest.raises(UsageError, match=f"{other} does not support `backend` {backend}") as caught:
        PlanRequest(None, backend=backend).check_target(load_target(other))
    names = (caught.value.hint or "").removeprefix("choose ").split(" or ")
    assert "auto" in names and backend not in names
