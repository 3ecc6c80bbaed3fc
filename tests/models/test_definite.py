"""What torch leaves open is definite in a reference."""

from __future__ import annotations

import threading

import torch

from edgecompile.models.definite import definite

aten = torch.ops.aten


def test_the_last_write_wins() -> None:
    """Eager's threads race from about 3,000 elements on."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        index, values = torch.randint(0, 9, (5000,)), torch.randn(5000, 16)
        last = torch.zeros(9, dtype=torch.int64).scatter_reduce(
            0, index, torch.arange(5000), "amax", include_self=False
        )
        for _ in range(20):
            with definite():
                y = torch.zeros(9, 16)
                y[index] = values
                z = torch.zeros(9).put(index, values[:, 0])
                torch.zeros(9).put_(index, values[:, 0], accumulate=True)
            assert torch.equal(y, values[last])
            assert torch.equal(z, values[last, 0])
    finally:
        torch.set_num_threads(before)


def test_the_last_thread_puts_torchs_settings_back() -> None:
    """One that began within another's time would else take its settings for the process's own."""
    began, left = threading.Event(), threading.Event()

    def other() -> None:
        with definite():
            began.set()
            left.wait()
            seen.append(torch.are_deterministic_algorithms_enabled())

    seen: list[bool] = []
    thread = threading.Thread(target=other)
    assert not torch.are_deterministic_algorithms_enabled()
    with definite():
        thread.start()
        began.wait()
    left.set()
    thread.join()
    assert seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()


def test_equal_values_keep_their_order() -> None:
    x = torch.randint(0, 3, (2, 500)).float()
    for descending in (False, True):
        _, order = x.sort(dim=1, descending=descending, stable=True)
        with definite():
            found = [
                torch.sort(x, 1, descending)[1],
                x.sort(dim=1, descending=descending).indices,
                x.argsort(1, descending),
                torch.sort(input=x, dim=1, descending=descending).indices,
                torch.topk(input=x, k=500, largest=descending).indices,
                torch.argsort(x, dim=-1, descending=descending),
                aten.sort.default(x, 1, descending)[1],
                aten.argsort.default(x, 1, descending),
                x.topk(500, largest=descending).indices,
                torch.topk(x, 500, 1, descending)[1],
                aten.topk.default(x, 500, 1, descending)[1],
            ]
        for places in found:
            assert torch.equal(places, order)
    with definite():
        values, places = torch.topk(x.t(), 7, dim=0)
    assert torch.equal(places, x.t().sort(dim=0, descending=True, stable=True).indices[:7])
    assert torch.equal(values, x.t().gather(0, places))


def test_what_was_set_comes_back() -> None:
    torch.use_deterministic_algorithms(True, warn_only=False)
    try:
        with definite():
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    with definite():
        pass
    assert not torch.are_deterministic_algorithms_enabled()
