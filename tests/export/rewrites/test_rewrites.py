"""Functions that fix a size when torch traces them: exported with a varying one, they agree with eager."""

from __future__ import annotations

import bisect
import io
import math
import statistics
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.signal import windows

from edgecompile.export.checks import compare_outputs
from edgecompile.export.export import export_model
from edgecompile.export.guards import watch_guards
from edgecompile.export.ladder import LADDER, export_program
from edgecompile.export.rewrites.logarithms import Logarithm
from edgecompile.export.rewrites.numbers import symbolic_math
from edgecompile.export.rewrites.varying import VaryingSizes
from edgecompile.loaders.load import load_model
from edgecompile.models.modules import NamedModule
from edgecompile.models.source_lines import line_of_text
from edgecompile.models.specs import InputSpec

INPUTS = (InputSpec("x", "float32", (2, 4, "length")),)

#: Results that are the same to the bit.
EXACT: dict[str, Callable[[Tensor], Any]] = {
    "max_pool": lambda x: F.max_pool1d(x, 2),
    "max_pool-3-2-1": lambda x: nn.MaxPool1d(3, stride=2, padding=1)(x),
    "max_pool-dilated": lambda x: torch.max_pool1d(x[0], (2,), [1], 1, (2,)),
    "max_pool-named": lambda x: torch.max_pool1d(kernel_size=2, input=x),
    "max_pool-indices": lambda x: F.max_pool1d(x, 2, return_indices=True),
    "max_pool-ceil": lambda x: F.max_pool1d(x, 2, ceil_mode=True),
    "max_pool-ceil-3-2-1": lambda x: nn.MaxPool1d(3, 2, 1, ceil_mode=True)(x),
    "max_pool-ceil-far": lambda x: F.max_pool1d(x, 2, 3, 1, 1, True),
    "max_pool-ceil-dilated": lambda x: F.max_pool1d(x[0], 3, 2, 1, 2, ceil_mode=True),
    "max_pool-ceil-indices": lambda x: F.max_pool1d(x, 3, 2, ceil_mode=True, return_indices=True),
    "max_pool2d-ceil": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_pool2d-ceil-indices": lambda x: F.max_pool2d(
        x, (3, 2), ceil_mode=True, return_indices=True
    ),
    "max_pool3d-ceil": lambda x: nn.MaxPool3d((1, 2, 3), ceil_mode=True)(x[None]),
    "adaptive_max": lambda x: F.adaptive_max_pool1d(x, 5),
    "adaptive_max-ties": lambda x: F.adaptive_max_pool1d(x.round(), 5, return_indices=True),
    "adaptive_max2d": lambda x: F.adaptive_max_pool2d(x, (3, 7)),
    "adaptive_max2d-none": lambda x: F.adaptive_max_pool2d(x, (1, None)),
    "adaptive_max2d-ties": lambda x: F.adaptive_max_pool2d(x.round(), (3, 7), return_indices=True),
    "adaptive_max-of-length": lambda x: F.adaptive_max_pool1d(x, x.shape[-1] // 2 + 1),
    "adaptive_avg2d-none": lambda x: F.adaptive_avg_pool2d(x, (1, None)),
    "linspace": lambda x: torch.linspace(-1.3, 2.7, x.shape[-1]),
    "linspace-to-length": lambda x: torch.linspace(0, x.shape[-1] - 1, steps=9),
    "linspace-twice": lambda x: torch.linspace(start=0, end=x.shape[-1], steps=2 * x.shape[-1]),
    "linspace-int": lambda x: torch.linspace(0, 50, x.shape[-1], dtype=torch.int64),
    "linspace-int-cut": lambda x: torch.linspace(0.9, 50.9, x.shape[-1], dtype=torch.int64),
    "hann": lambda x: torch.hann_window(x.shape[-1]),
    "hann-symmetric": lambda x: torch.hann_window(x.shape[-1], False),
    "hamming": lambda x: torch.hamming_window(x.shape[-1], True, 0.5, 0.4),
    "blackman": lambda x: torch.blackman_window(x.shape[-1], periodic=False),
    "bartlett": lambda x: torch.bartlett_window(x.shape[-1]),
    "bartlett-symmetric": lambda x: torch.bartlett_window(x.shape[-1], periodic=False),
    "signal": lambda x: windows.nuttall(x.shape[-1], sym=False) + windows.gaussian(x.shape[-1]),
    "tril": lambda x: torch.tril_indices(x.shape[-1], x.shape[-1]),
    "tril-below": lambda x: torch.tril_indices(x.shape[-1], x.shape[-1], offset=-1),
    "tril-above": lambda x: torch.tril_indices(x.shape[-1], x.shape[-1], 2),
    "tril-wide": lambda x: torch.tril_indices(6, x.shape[-1] + 3, -1),
    "tril-high": lambda x: torch.tril_indices(x.shape[-1], 6, 1, dtype=torch.int32),
    "triu": lambda x: torch.triu_indices(x.shape[-1], x.shape[-1], 1),
    "triu-wide": lambda x: torch.triu_indices(6, x.shape[-1] + 3, -1),
    "triu-high": lambda x: torch.triu_indices(x.shape[-1] + 3, x.shape[-1]),
    "combinations": lambda x: torch.combinations(x[0, 0]),
    "combinations-named": lambda x: torch.combinations(input=x[0, 0], r=2),
    "one_hot": lambda x: F.one_hot(torch.arange(x.shape[-1]), x.shape[-1]),
    "vander": lambda x: torch.vander(x[0, 0], 3),
    "fftfreq": lambda x: (torch.fft.fftfreq(x.shape[-1]), torch.fft.rfftfreq(x.shape[-1], 0.5)),
    "sqrt": lambda x: x / math.sqrt(x.shape[-1]) + np.sqrt(x.shape[-1]),
    "isqrt": lambda x: x * math.isqrt(x.shape[-1]),
    "exp": lambda x: x * math.exp(-x.shape[-1] / 10),
}


def spectrum(x: Tensor, **how: Any) -> Tensor:
    return torch.stft(x, 6, 2, window=torch.hann_window(6), return_complex=True, **how)


def image(x: Tensor, **how: Any) -> Tensor:
    return F.interpolate(F.pad(x, (0, 1))[:, None], antialias=True, **how)


#: Results within a few roundings.
CLOSE: dict[str, Callable[[Tensor], Any]] = {
    "adaptive_avg": lambda x: F.adaptive_avg_pool1d(x, 5),
    "adaptive_avg-named": lambda x: F.adaptive_avg_pool1d(input=x, output_size=5),
    "adaptive_avg2d": lambda x: F.adaptive_avg_pool2d(x, (3, 7)),
    "adaptive_avg3d": lambda x: F.adaptive_avg_pool3d(x[:, None], (2, 3, 7)),
    "adaptive_avg-of-length": lambda x: F.adaptive_avg_pool1d(x, (x.shape[-1] + 1) // 2),
    "avg_pool-ceil": lambda x: F.avg_pool1d(x, 2, ceil_mode=True),
    "avg_pool-ceil-3-2-1": lambda x: nn.AvgPool1d(3, 2, 1, True, False)(x),
    "avg_pool-ceil-far": lambda x: F.avg_pool1d(x, 2, 3, 1, True),
    "avg_pool2d-ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool2d-ceil-inside": lambda x: nn.AvgPool2d(3, 2, 1, True, False)(x[None]),
    "avg_pool2d-ceil-divisor": lambda x: F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3),
    "avg_pool3d-ceil": lambda x: F.avg_pool3d(x[None], (1, 2, 2), ceil_mode=True),
    "lp_pool-ceil": lambda x: F.lp_pool1d(x, 2, 3, 2, ceil_mode=True),
    "bilinear": lambda x: F.bilinear(x.mT, x.mT + 1, torch.arange(48.0).view(3, 4, 4) / 99),
    "cdist": lambda x: torch.cdist(x.mT, x.mT + 1, compute_mode="donot_use_mm_for_euclid_dist"),
    "cdist-1": lambda x: torch.cdist(x.mT, x.mT, p=1.0),
    "cdist-3": lambda x: torch.cdist(x.mT, x.mT, 3.0),
    "cdist-inf": lambda x: torch.cdist(x[0].mT, x[1].mT, math.inf),
    "stft": lambda x: torch.view_as_real(spectrum(x[:, 0])),
    "stft-pairs": lambda x: torch.stft(x[0, 0], 6, 2, 4, center=False, return_complex=False),
    "stft-normalized": lambda x: spectrum(x[:, 0], normalized=True, pad_mode="constant").abs(),
    "istft": lambda x: torch.istft(spectrum(x[:, 0]), 6, 2, window=torch.hann_window(6)),
    "istft-length": lambda x: torch.istft(spectrum(x[:, 0]), 6, 2, length=x.shape[-1]),
    "istft-longer": lambda x: torch.istft(spectrum(x[:, 0]), 6, 2, length=x.shape[-1] + 9),
    "istft-one": lambda x: torch.istft(spectrum(x[0, 0]), 6, 2, 4, normalized=True),
    "area": lambda x: F.interpolate(x, size=7, mode="area"),
    "area-half": lambda x: F.interpolate(F.pad(x, (0, 1)), scale_factor=0.5, mode="area"),
    "antialias": lambda x: image(x, size=(7, 5), mode="bilinear"),
    "antialias-half": lambda x: image(x, scale_factor=0.5, mode="bilinear"),
    "antialias-odd": lambda x: image(x, scale_factor=(1.7, 0.6), mode="bicubic"),
    "antialias-recomputed": lambda x: image(
        x, scale_factor=0.6, mode="bicubic", recompute_scale_factor=True
    ),
    "antialias-corners": lambda x: image(x, size=(7, 5), mode="bilinear", align_corners=True),
    "antialias-of-length": lambda x: image(x, size=(3, x.shape[-1] // 2 + 1), mode="bicubic"),
    "antialias-one": lambda x: image(x, size=1, mode="bicubic"),
    "logspace": lambda x: torch.logspace(-1, 2, x.shape[-1], base=2.0),
    "kaiser": lambda x: torch.kaiser_window(x.shape[-1], True, 8.0),
    "affine_grid": lambda x: F.affine_grid(
        torch.ones(2, 2, 3), (2, 1, 4, x.shape[-1]), align_corners=False
    ),
    "affine_grid-corners": lambda x: F.affine_grid(
        torch.ones(2, 2, 3), [2, 1, 4, x.shape[-1]], align_corners=True
    ),
    "log": lambda x: x * math.log(x.shape[-1], 64) + np.log(x.shape[-1]),
    "logs": lambda x: x + 1 / math.log2(x.shape[-1]) - math.log10(x.shape[-1] + 1) * 3,
    "logs-filled": lambda x: torch.full((x.shape[-1],), -math.log1p(x.shape[-1])),
    "log-limited": lambda x: x * max(1.0, math.log(x.shape[-1])),
}
#: The least lengths of those that fail at shorter ones, or give another branch there.
LEAST = {
    **dict.fromkeys(("max_pool", "max_pool-3-2-1", "max_pool-dilated", "max_pool-indices"), 4),
    "max_pool-named": 4,
    **{name: 4 for name in (*EXACT, *CLOSE) if "pool" in name and "ceil" in name},
    **{name: 8 for name in CLOSE if "stft" in name},
    **dict.fromkeys(("tril-below", "tril-above", "tril-wide", "tril-high", "triu"), 4),
    **{
        "combinations": 4,
        "combinations-named": 4,
        "signal": 2,
        "logs": 2,
        "log-limited": 3,
        "adaptive_avg-of-length": 4,
        "area-half": 4,
        "antialias-half": 4,
        "antialias-odd": 4,
        "antialias-recomputed": 4,
        "antialias-of-length": 4,
    },
}


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def exported(function: Callable[[Tensor], Any], lo: int, hi: int, traced: int) -> Any:
    module = NamedModule(Applied(function), ["x"])
    example = {"x": torch.randn(2, 4, traced)}
    program = export_program(module, example, INPUTS, {"length": (lo, hi)}, LADDER[0])
    torch.export.save(program, io.BytesIO())  # what a work folder holds
    return module, program.module()


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_a_varying_length_gives_what_eager_gives(name: str) -> None:
    torch.manual_seed(0)
    least = LEAST.get(name, 1)
    module, graph = exported({**EXACT, **CLOSE}[name], least, 70, 11)
    lengths = {1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 31, 69, 70}
    for length in sorted(length for length in lengths if length >= least):
        x = torch.randn(2, 4, length)
        wanted, got = module(x=x), graph(x=x)
        for key, value in wanted.items():
            bound = 0.0 if name in EXACT else 2e-6
            torch.testing.assert_close(got[key], value, rtol=bound, atol=bound)
            assert got[key].stride() == value.stride()


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_a_window_of_a_fixed_length_needs_no_kernel(name: str) -> None:
    """A padded program has fixed lengths alone."""
    function = getattr(torch, f"{name}_window")
    with VaryingSizes():
        for length in (1, 2, 9):
            graph = make_fx(lambda x: x * function(x.shape[-1]))(torch.ones(length)).graph
            called = {str(node.target) for node in graph.nodes}
            assert length == 1 or not any("window" in item for item in called)


@pytest.mark.parametrize(
    "power",
    [
        lambda n: 1 << (n - 1).bit_length(),
        lambda n: 2 ** math.ceil(math.log2(n)),
        lambda n: int(2 ** math.ceil(math.log(n) / math.log(2))),
        lambda n: 2 ** (math.floor(math.log2(n - 1)) + 1),
    ],
)
def test_the_next_power_of_two_is_one_number_over_its_range(power: Callable[[Any], Any]) -> None:
    def padded(x: Tensor) -> Tensor:
        return F.pad(x, (0, power(x.shape[-1]) - x.shape[-1]))

    _, graph = exported(padded, 33, 64, 40)
    for length in (33, 50, 64):
        assert graph(x=torch.randn(2, 4, length))["output"].shape[-1] == 64
    with pytest.raises(Exception, match="length"):
        exported(padded, 33, 65, 40)
    with pytest.raises(Exception, match="length"):
        exported(padded, 32, 64, 40)


def test_decisions_by_a_logarithm_are_pythons_own() -> None:
    """At 125 the quotient is 3.0000000000000004 for Python, at 243 log's is 4.999999999999999."""

    def levels(x: Tensor) -> Tensor:
        return x * math.ceil(math.log(x.shape[-1], 5)) + math.floor(math.log(x.shape[-1], 3))

    _, graph = exported(levels, 125, 243, 200)
    x = torch.randn(2, 4, 125)
    assert torch.equal(graph(x=x)["output"], x * 4 + 4)
    with pytest.raises(ValueError, match="isn't exact"):
        exported(lambda x: x * math.ceil(math.log2(x.shape[-1] / 3)), 10, 20, 12)


@pytest.mark.parametrize(
    "is_power",
    [
        lambda n: math.log2(n) == int(math.log2(n)),
        lambda n: False if math.log2(n) != round(math.log2(n)) else n > 0,
        lambda n: math.log2(n).is_integer(),
        lambda n: math.log2(n) % 1 == 0,
        lambda n: math.log2(n) // 1 == math.log2(n),
    ],
)
def test_equality_of_a_logarithm_is_pythons_own(is_power: Callable[[Any], bool]) -> None:
    """The series gives 4.000000000000001 or the like for log2(16): no power of two."""

    def forward(x: Tensor) -> Tensor:
        return x + 1 if is_power(x.shape[-1]) else x - 1

    x = torch.randn(2, 4, 22)
    assert torch.equal(exported(forward, 17, 22, 20)[1](x=x)["output"], x - 1)
    assert torch.equal(exported(forward, 16, 16, 16)[1](x=x[..., :16])["output"], x[..., :16] + 1)
    with pytest.raises(Exception, match="length"):
        exported(forward, 16, 22, 20)


def test_powers_by_a_logarithm_are_pythons_own() -> None:
    """For 9 Python gives 8.999999999999998."""
    _, graph = exported(lambda x: x * math.floor(2 ** math.log2(x.shape[-1])), 8, 9, 9)
    for length in (8, 9):
        x = torch.randn(2, 4, length)
        assert torch.equal(graph(x=x)["output"], x * 8)
    # No size has this logarithm, so that none is told apart.
    exported(lambda x: x + 1 if math.log10(x.shape[-1]) == 1.5 else x, 4, 70, 20)


def test_casts_of_a_length_keep_it_varying() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            n = x.shape[1]
            assert isinstance(4, int) and isinstance(n / 2, float | torch.SymFloat)
            end = math.ceil(n / 3)
            grid = torch.linspace(0, 1, int(n)) / float(n)
            grid = grid * torch.ones(int(n), dtype=float).to(dtype=x.dtype)
            ids = torch.arange(int(n), dtype=int) * torch.tensor(2, dtype=int)
            x = x + ids[:, None] * 1e-3
            return x[:, : int(n * 0.5)], x[:, : round(n / 2)], x[:, :end], x * grid[:, None]

    spec = {
        "module": Cut(),
        "inputs": {"x": torch.randn(2, 9, 4)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (4, 40)},
    }
    model = load_model(spec)
    exported = export_model(model)
    assert exported.ranges["length"] == (4, 40)
    graph = exported.program.module()
    for length in range(4, 41):
        example = exported.example({"length": length})
        assert compare_outputs(graph(**example), model.run(example)) < 1e-6


def test_the_length_of_a_tensor_keeps_varying() -> None:
    class Grid(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows = torch.arange(x.shape[1]) / 7
            assert len([rows]) == 1 and len("ab") == 2 and len(x) == 2
            return x + rows[:, None].expand(len(rows), 4) / len(rows)

    spec = {
        "module": Grid(),
        "inputs": {"x": torch.randn(2, 9, 4)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (1, 40)},
    }
    exported = export_model(load_model(spec))
    assert (exported.ranges["length"], exported.strategy) == ((1, 40), "dim")
    with symbolic_math(), pytest.raises(TypeError, match="has no len"):
        len(3)  # type: ignore[arg-type]
    with symbolic_math(), pytest.raises(TypeError, match="0-d tensor"):
        len(torch.tensor(1))


def _with_numbers() -> list[Any]:
    """What Python's types and mathematics give where no size is about."""
    return [
        torch.zeros(2, dtype=int).dtype,
        torch.tensor([1], dtype=float).dtype,
        torch.ones(2).to(int).dtype,
        torch.ones(2).sum(dtype=float).dtype,
        np.zeros(2, int).dtype,
        np.ones(2).astype(dtype=float).dtype,
        {int: "whole", float: "real"}[int],
        float == float,  # noqa: E721
        isinstance(True, int) and not isinstance(3, float),
        [*map(int, ["1", 2.9])],
        int("ff", base=16),
        int.from_bytes(b"a", "big"),
        [
            math.sqrt(2),
            math.log(8, 2),
            math.isqrt(10),
            math.pow(2, 0.5),
            round(2.5),
            round(2.567, 2),
        ],
        [type(item) for item in (math.sqrt(4), int(3.0), float(3), round(2.5))],
    ]


def test_numbers_stay_as_they_are_in_every_thread() -> None:
    """Sizes are no concern of what else a model computes, nor of other threads."""
    wanted, mathematics, zeros = _with_numbers(), math, torch.zeros
    found: list[list[Any]] = []

    def other() -> None:
        found.append(_with_numbers())

    def second() -> None:
        with symbolic_math():
            entered.set()
            may_leave.wait()

    entered, may_leave = threading.Event(), threading.Event()
    threads = [threading.Thread(target=target) for target in (other, second)]
    with symbolic_math(casts=True):
        assert math is not mathematics
        found.append(_with_numbers())
        for thread in threads:
            thread.start()
        threads[0].join()
        assert not entered.wait(0.05)  # before this one has left it would find no originals
    may_leave.set()
    threads[1].join()
    assert found == [wanted, wanted]
    assert math is mathematics and torch.zeros is zeros and not hasattr(torch.SymInt, "sqrt")
    assert "to" not in vars(torch.Tensor) and "int" not in globals()


def test_triangles_of_many_elements_are_exact() -> None:
    _, graph = exported(lambda x: torch.tril_indices(x.shape[-1], x.shape[-1], -1), 4, 6000, 11)
    x = torch.empty(2, 4, 5999)
    assert torch.equal(graph(x=x)["output"], torch.tril_indices(5999, 5999, -1))


def test_torch_and_python_are_left_as_they_were() -> None:
    here = sys.modules[__name__]
    with VaryingSizes(), symbolic_math():
        assert here.math is not math.__spec__ and here.math.log(8, 2) == 3.0  # type: ignore[attr-defined]
        assert torch.equal(torch.linspace(0, 1, 5), torch.tensor([0, 0.25, 0.5, 0.75, 1]))
    assert here.math is sys.modules["math"]  # type: ignore[attr-defined]
    assert not hasattr(torch.SymInt, "sqrt")
    assert "bit_length" in vars(torch.SymInt) and issubclass(Logarithm, torch.SymFloat)


def test_conditions_of_torchs_own_modules_name_the_module() -> None:
    net = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Sequential(nn.PixelUnshuffle(2)))
    with watch_guards() as watch, pytest.raises(Exception, match="length"):
        example = {"x": torch.randn(2, 4, 12)}
        named = NamedModule(net, ["x"], positional=1)
        export_program(named, example, INPUTS, {"length": (4, 70)}, LADDER[0])
    place = watch.place_of(INPUTS)
    assert place == "the module 1.0 (PixelUnshuffle)"
    assert str(line_of_text(f"its code needs length % 2 == 0 (at {place})")) == place


def test_conditions_within_pythons_library_name_the_models_line() -> None:
    def chosen(x: Tensor) -> Tensor:
        return x * bisect.bisect([8, 16], x.shape[-1])

    def compared(x: Tensor) -> Tensor:
        return x * statistics.median_low([x.shape[-1], 20])

    for function in (chosen, compared):
        with watch_guards() as watch, pytest.raises(Exception, match="length"):
            exported(function, 4, 70, 11)
        assert f"test_rewrites.py:{function.__code__.co_firstlineno + 1} in" in str(
            watch.place_of(INPUTS)
        )
