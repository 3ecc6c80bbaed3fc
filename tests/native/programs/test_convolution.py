"""Convolutions of the C ABI against torch's, over random shapes and strides."""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from edgecompile.backends.operators.convolution import (
    CONVOLUTION,
    Geometry,
    canonical_weight,
    choose_tile,
    is_channel_wise,
    pack_convolution,
)
from edgecompile.backends.operators.ops import ACT_LAST, ACTIVATIONS, finish
from edgecompile.runtime.cpu.functions import ProfileRow
from tests.native.programs.aoti import Shim, ShimError, int64s, load_torch_shim
from tests.native.programs.test_aoti_kernels import strided
from tests.native.sweep import sweep

F = np.float32


@dataclass(frozen=True)
class Case:
    """A convolution; one number for each spatial dimension."""

    batch: int
    channels: int
    outputs: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    extra: tuple[int, ...] = ()

    @property
    def dims(self) -> int:
        return len(self.sizes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.sizes)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        if self.transposed:
            return (self.channels, self.outputs // self.groups, *self.kernel)
        return (self.outputs, self.channels // self.groups, *self.kernel)

    @property
    def output_padding(self) -> tuple[int, ...]:
        return self.extra or (0,) * self.dims

    @property
    def geometry(self) -> Geometry:
        ends = tuple(p - e for p, e in zip(self.padding, self.output_padding, strict=True))
        return Geometry(
            self.kernel,
            self.stride,
            self.padding,
            ends,
            self.dilation,
            self.transposed,
            self.groups,
        )

    def reference(self, x, weight, bias) -> np.ndarray:
        """torch's result in float64."""
        y = torch.ops.aten.convolution(
            *(None if t is None else torch.from_numpy(np.asarray(t).astype(np.float64)) for t in (x, weight, bias)),
            self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups,
        )  # fmt: skip
        return y.numpy()


def random_case(rng: np.random.Generator, *, dims: int | None = None) -> Case:
    """A convolution that has a result, small enough to be compared in float64."""
    dims = dims or int(rng.choice([1, 2, 3], p=[0.45, 0.45, 0.1]))
    most = {1: 40, 2: 12, 3: 6}[dims]

    def pick(values) -> tuple[int, ...]:
        return tuple(int(v) for v in rng.choice(values, dims))

    while True:
        kind = rng.choice(
            ["dense", "depthwise", "multiplied", "square", "few", "many"],
            p=[0.35, 0.15, 0.1, 0.15, 0.1, 0.15],
        )
        groups = 1
        channels, outputs = (int(rng.choice([1, 3, 4, 16, 31, 32, 33, 50, 64])) for _ in "io")
        if kind == "depthwise":
            groups = channels = outputs = int(rng.choice([2, 5, 16, 33, 48, 70]))
        elif kind == "multiplied":
            groups = channels = int(rng.choice([2, 7, 20]))
            outputs = groups * int(rng.choice([2, 3, 8, 9]))
        elif kind == "square":
            groups = int(rng.choice([2, 4, 5, 9, 17]))
            channels = outputs = groups * int(rng.choice([2, 3, 4, 8]))
        elif kind != "dense":
            groups = int(rng.choice([2, 3, 5]))
            ins, outs = ([1, 2, 5], [1, 2, 8]) if kind == "few" else ([3, 16, 48], [9, 16, 33, 48])
            channels, outputs = groups * int(rng.choice(ins)), groups * int(rng.choice(outs))
        kernel, stride = pick([1, 2, 3, 5] if dims > 1 else [1, 2, 3, 7, 16]), pick([1, 1, 2, 3])
        dilation, padding = pick([1, 1, 1, 2, 3]), pick([0, 1, 2])
        transposed = bool(rng.random() < 0.3)
        extra = ()
        if transposed:
            extra = tuple(
                int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True)
            )
        sizes = tuple(int(n) for n in rng.integers(1, most + 1, dims))
        case = Case(
            int(rng.integers(1, 4)), channels, outputs, sizes, kernel, stride, padding, dilation,
            groups, transposed, extra,
        )  # fmt: skip
        spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        if transposed:
            results = [
                (n - 1) * s - 2 * p + r + e + 1
                for n, s, p, r, e in zip(sizes, stride, padding, spans, extra, strict=True)
            ]
        else:
            results = [n + 2 * p - r for n, p, r in zip(sizes, padding, spans, strict=True)]
        if min(results) >= 1:
            return case


def arrays(
    rng: np.random.Generator, case: Case
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Input, weight and bias in memory of any order; sums have a size of about one."""
    weight = strided(rng, case.weight_shape)
    weight /= F(np.sqrt(max(1, weight[0].size)))
    bias = strided(rng, (case.outputs,)) if rng.random() < 0.7 else None
    x = strided(rng, case.input_shape)
    order = rng.random()
    if order < 0.5:  # the two orders that models have
        x = np.ascontiguousarray(x)
    if order < 0.25:
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    return x, weight, bias


def plain(library: Shim, case: Case, x, weight, bias):
    """torch's operator by its C function."""
    handles = [library.borrow(x), library.borrow(weight)]
    bias_handle = None if bias is None else library.borrow(bias)
    lists = [
        argument
        for numbers in (case.stride, case.padding, case.dilation)
        for argument in (int64s(numbers), ctypes.c_int64(len(numbers)))
    ]
    try:
        result = library.make(
            "cpu_convolution", *handles, None if bias is None else ctypes.byref(bias_handle),
            *lists, int(case.transposed), int64s(case.output_padding), ctypes.c_int64(case.dims),
            ctypes.c_int64(case.groups),
        )  # fmt: skip
        got = library.array(result), library.strides(result)
        library.delete(result)
    finally:
        library.delete(*handles, *([] if bias is None else [bias_handle]))
    return got


def packed(
    library: Shim, case: Case, x, w_packed, bias, act: str = "none", geometry=None,
    residual=None, *, act_last: bool = False,
):  # fmt: skip
    """The runtime's own operator."""
    g = geometry or case.geometry
    tensors = [library.borrow(x), library.borrow(w_packed)]
    optional = [None if array is None else library.borrow(array) for array in (bias, residual)]
    numbers = [
        argument
        for values in (g.kernel, g.stride, (*g.begins, *g.ends), g.dilation)
        for argument in (int64s(values), ctypes.c_int64(len(values)))
    ]
    try:
        result = library.make(
            "cpu_ec_convolution", *tensors,
            *(None if handle is None else ctypes.byref(handle) for handle in optional),
            *numbers, int(g.transposed), ctypes.c_int64(g.groups), ctypes.c_int64(case.outputs),
            ctypes.c_int64(ACTIVATIONS[act] + ACT_LAST * act_last),
        )  # fmt: skip
        got = library.array(result), library.strides(result)
        library.delete(result)
    finally:
        library.delete(*tensors, *(handle for handle in optional if handle is not None))
    return got


def pack(case: Case, weight: np.ndarray) -> np.ndarray:
    tensor = torch.from_numpy(np.ascontiguousarray(weight))
    canonical = canonical_weight(tensor, case.transposed, case.groups)
    return pack_convolution(canonical, case.geometry).numpy()


def close(got: np.ndarray, wanted: np.ndarray, what: object) -> None:
    """Sums whose terms' squares add up to about one, rounded to float32 a few times."""
    assert got.shape == wanted.shape, what
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=str(what))


@sweep("seed", range(100))
def test_torchs_operator(shim, seed: int):
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    x, weight, bias = arrays(rng, case)
    got, strides = plain(shim, case, x, weight, bias)
    close(got, case.reference(x, weight, bias), case)
    # Generated code reads the result with the strides that torch's operator gives it.
    want, torchs = plain(load_torch_shim(), case, x, weight, bias)
    real = [i for i, n in enumerate(want.shape) if n > 1]
    assert [strides[i] for i in real] == [torchs[i] for i in real], case


@sweep("seed", range(160))
def test_packed_weights(shim, seed: int):
    rng = np.random.default_rng(1000 + seed)
    case = random_case(rng)
    x, weight, bias = arrays(rng, case)
    act, act_last = str(rng.choice(["none", *ACTIVATIONS])), bool(rng.random() < 0.5)
    wanted = torch.from_numpy(case.reference(x, weight, bias))
    residual = strided(rng, wanted.shape) if rng.random() < 0.5 else None
    got, strides = packed(
        shim, case, x, pack(case, weight), bias, act, residual=residual, act_last=act_last
    )
    addend = None if residual is None else torch.from_numpy(np.array(residual))
    close(got, finish(wanted, addend, ACTIVATIONS[act] + ACT_LAST * act_last).numpy(), case)
    last = np.moveaxis(np.empty(np.moveaxis(got, 1, -1).shape, F), -1, 1)
    assert strides == tuple(s // 4 for s in last.strides)


@sweep("seed", range(40))
def test_torchs_implementation_of_the_operator_is_the_same(seed: int):
    """The stand-in for verifying lowered graphs computes as the kernel does, and knows its sizes."""
    rng = np.random.default_rng(2000 + seed)
    case = random_case(rng)
    x, weight, bias = arrays(rng, case)
    g = case.geometry
    x, w_packed = torch.from_numpy(np.array(x)), torch.from_numpy(pack(case, weight))
    vector = None if bias is None else torch.from_numpy(np.array(bias))
    settings = g.kernel, g.stride, (*g.begins, *g.ends), g.dilation, g.transposed, g.groups
    got = CONVOLUTION(x, w_packed, vector, None, *settings, case.outputs, 0)
    close(got.numpy(), case.reference(x, weight, bias), case)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = CONVOLUTION(mode.from_tensor(x), w_packed, vector, None, *settings, case.outputs, 0)
    assert (fake.shape, fake.stride()) == (got.shape, got.stride())


BIG = [
    # As models have them, with enough rows and channels for every way of dividing the work.
    Case(1, 512, 512, (301,), (3,), (2,), (0,), (1,)),  # wav2vec2's feature extractor
    Case(1, 1, 96, (3000,), (10,), (5,), (0,), (1,)),
    Case(2, 192, 192, (130,), (128,), (1,), (64,), (1,), groups=4),  # its positional convolution
    Case(1, 80, 384, (700,), (3,), (1,), (1,), (1,)),  # Whisper
    Case(1, 3, 192, (64, 96), (16, 16), (16, 16), (0, 0), (1, 1)),  # patches
    Case(2, 64, 64, (28, 30), (3, 3), (1, 1), (1, 1), (1, 1)),  # ResNet
    Case(1, 3, 64, (65, 64), (7, 7), (2, 2), (3, 3), (1, 1)),
    Case(1, 256, 320, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    Case(1, 128, 128, (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), groups=32),  # ResNeXt
    Case(1, 256, 256, (15, 14), (3, 3), (2, 2), (1, 1), (1, 1), groups=32),
    Case(2, 70, 70, (9, 31), (3, 3), (1, 1), (1, 1), (1, 1), groups=35),
    Case(1, 96, 96, (29, 30), (7, 7), (1, 1), (3, 3), (1, 1), groups=96),  # ConvNeXt
    Case(1, 384, 384, (7, 7), (7, 7), (1, 1), (3, 3), (1, 1), groups=384),
    Case(1, 256, 256, (600,), (4,), (1,), (3,), (1,), groups=256),  # Mamba
    Case(1, 128, 64, (101,), (16,), (8,), (4,), (1,), transposed=True),  # vocoders
    Case(2, 48, 40, (17, 19), (4, 4), (2, 2), (1, 1), (1, 1), transposed=True),
]  # fmt: skip


@pytest.mark.parametrize("case", BIG, ids=str)
def test_sizes_of_models(shim, case: Case):
    rng = np.random.default_rng(case.channels)
    x, weight, bias = arrays(rng, case)
    got, _ = packed(shim, case, x, pack(case, weight), bias)
    close(got, case.reference(x, weight, bias), case)


@pytest.mark.parametrize("tile", [2, 4])
@sweep("seed", range(12))
def test_weights_packed_for_tiles(shim, tile: int, seed: int):
    """They are told by their number of elements, and torch's stand-in reads them, too."""
    rng = np.random.default_rng(3000 + seed)
    channels, outputs = (int(rng.choice([1, 5, 16, 33, 64])) for _ in "io")
    begins, ends = (tuple(int(n) for n in rng.integers(-1, 3, 2)) for _ in "be")
    sizes = tuple(int(n) for n in rng.integers(5, 20, 2))
    case = Case(2, channels, outputs, sizes, (3, 3), (1, 1), (0, 0), (1, 1))
    geometry = Geometry((3, 3), (1, 1), begins, ends, (1, 1))
    x, weight, bias = arrays(rng, case)
    w_packed = pack_convolution(torch.from_numpy(np.ascontiguousarray(weight)), geometry, tile)
    assert w_packed.shape[1] == (tile + 2) ** 2 * channels
    got, _ = packed(shim, case, x, w_packed.numpy(), bias, geometry=geometry)
    vector = None if bias is None else torch.from_numpy(np.array(bias))
    padding = [n for pair in zip(begins[::-1], ends[::-1], strict=True) for n in pair]
    padded = torch.nn.functional.pad(torch.from_numpy(np.array(x)), padding)
    want = case.reference(padded.numpy(), weight, bias)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    stand_in = CONVOLUTION(
        torch.from_numpy(np.array(x)), w_packed, vector, None, *geometry.arguments, outputs, 0
    )
    np.testing.assert_allclose(stand_in.numpy(), want, rtol=2e-5, atol=2e-5)


def test_tiles_are_chosen_where_they_pay():
    plain = Geometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    chosen = {
        (channels, size): choose_tile(channels, [(plain, (size, size))])
        for channels, size in [(64, 56), (256, 14), (512, 7), (3, 224), (2048, 14), (1024, 28)]
    }
    assert list(chosen.values()) == [4, 2, 0, 0, 0, 2]
    # Most of a tile lies outside of an image of one line, half of a larger one outside of two lines.
    narrow = [(1, 64), (1, 512), (512, 1), (2, 256), (3, 512), (4, 128)]
    assert [choose_tile(64, [(plain, size)]) for size in narrow] == [0, 0, 0, 2, 4, 4]
    for change in (
        {"stride": (2, 2)}, {"dilation": (2, 2)}, {"groups": 2}, {"transposed": True},
        {"kernel": (3, 1)}, {"kernel": (3,)},
    ):  # fmt: skip
        other = dataclasses.replace(plain, **change)
        assert choose_tile(64, [(other, (56, 56))]) == 0, change
        assert choose_tile(64, [(plain, (56, 56)), (other, (56, 56))]) == 0, change


@pytest.mark.parametrize(("tile", "points"), [(0, 9), (2, 16), (4, 36)])
@pytest.mark.parametrize("added", [False, True])
def test_its_work_is_that_of_taps_and_of_what_is_read(shim, tile: int, points: int, added: bool):
    case = Case(2, 16, 40, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1))
    x, weight, _ = arrays(np.random.default_rng(0), case)
    tensor = torch.from_numpy(np.ascontiguousarray(weight))
    w_packed = pack_convolution(tensor, case.geometry, tile).numpy()
    residual = np.ones((2, 40, 9, 11), F) if added else None
    rows = (ProfileRow * 64)()
    shim.library.ec_profile_begin()
    packed(shim, case, x, w_packed, None, residual=residual)
    count = shim.library.ec_profile_end(rows, ctypes.c_int64(64))
    (row,) = [row for row in rows[:count] if row.kernel == b"convolution"]
    outputs = 2 * 9 * 11 * 40
    assert row.flops == 2 * outputs * 16 * 9
    # Weights are stored in panels of 32 outputs.
    assert row.bytes == 4 * (x.size + points * 16 * 64 + outputs * (1 + added))


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 8, 8, (9, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
        Case(1, 8, 8, (9, 9), (3, 3), (1, 1), (1, 1), (2, 2)),
        Case(1, 64, 64, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), groups=2),
        Case(1, 8, 8, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), transposed=True),
        Case(1, 8, 8, (3, 9, 9), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ],
    ids=str,
)
def test_weights_for_tiles_of_others_are_refused(shim, case: Case):
    x = np.zeros(case.input_shape, F)
    points = np.zeros((-(-case.outputs // 32), 16 * case.channels // case.groups, 32), F)
    with pytest.raises(ShimError, match=r"w_packed has \d+ elements"):
        packed(shim, case, x, points, None)


def test_unequal_padding(shim):
    """Padding before and behind differ, as in causal convolutions and with "same"."""
    rng = np.random.default_rng(0)
    for begins, ends in ([(6, 0), (0, 0)], [(0, 0), (3, 1)], [(1, 2), (2, 0)]):
        case = Case(2, 12, 40, (9, 11), (3, 4), (2, 1), (0, 0), (1, 2))
        geometry = Geometry(case.kernel, case.stride, begins, ends, case.dilation)
        x, weight, bias = arrays(rng, case)
        got, _ = packed(shim, case, x, pack(case, weight), bias, geometry=geometry)
        padded = np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
        close(got, case.reference(padded, weight, bias), geometry)


def test_values_beyond_the_image_are_not_read(shim):
    """Memory between the elements and around them is NaN."""
    for channels, groups in ((5, 1), (5, 5), (33, 33), (40, 2)):
        case = Case(2, channels, channels, (13, 6), (3, 5), (1, 1), (1, 2), (1, 1), groups)
        memory = np.full((4, 15, 8, channels + 3), np.nan, F)
        x = np.moveaxis(memory[1:3, 1:-1, 1:-1, :channels], -1, 1)
        x[...] = np.random.default_rng(1).standard_normal(x.shape)
        weight = np.random.default_rng(2).standard_normal(case.weight_shape).astype(F) / 10
        for give in (x, np.ascontiguousarray(x)):
            got, _ = packed(shim, case, give, pack(case, weight), None)
            close(got, case.reference(x, weight, None), case)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_other_floating_types(shim, dtype: str, transposed: bool):
    case = Case(2, 6, 10, (7, 9), (3, 2), (2, 1), (1, 1), (1, 2), 2, transposed)
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    tensors = [
        torch.randn(shape).to(kind)
        for shape in (case.input_shape, case.weight_shape, (case.outputs,))
    ]
    given = [t.view(torch.uint16).numpy() if dtype == "bfloat16" else t.numpy() for t in tensors]
    handles = [shim.borrow(array, dtype) for array in given]
    lists = [
        argument
        for numbers in (case.stride, case.padding, case.dilation)
        for argument in (int64s(numbers), ctypes.c_int64(case.dims))
    ]
    result = shim.make(
        "cpu_convolution", handles[0], handles[1], ctypes.byref(handles[2]), *lists,
        int(transposed), int64s(case.output_padding), ctypes.c_int64(2), ctypes.c_int64(2),
    )  # fmt: skip
    widened = shim.empty(shim.sizes(result), dtype=7)
    shim.call("copy_", widened, result, 0)
    wanted = case.reference(*(t.double().numpy() for t in tensors))
    tolerance = {"float64": 1e-13, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(shim.array(widened), wanted, rtol=tolerance, atol=tolerance)
    shim.delete(*handles, result, widened)


def test_nothing_to_compute(shim):
    for case in (
        Case(0, 8, 8, (5,), (3,), (1,), (1,), (1,)),
        Case(0, 8, 8, (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), groups=8),
        Case(2, 8, 40, (1,), (3,), (4,), (0,), (1,), transposed=True),
        Case(1, 8, 8, (3,), (2,), (5,), (0,), (1,), groups=8, transposed=True),
    ):
        x, weight, bias = arrays(np.random.default_rng(0), case)
        bias = np.arange(case.outputs, dtype=F)
        got, _ = packed(shim, case, x, pack(case, weight), bias)
        close(got, case.reference(x, weight, bias), case)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((2, 8, 4), np.float64)}, "x is float64"),
        ({"x": np.zeros((2, 8), F)}, "the input has 2 dimensions"),
        ({"x": np.zeros((2, 8, 2), F)}, "dimension 0 of the input, 2 with 0 of padding, is too small for a kernel of 3"),
        ({"x": np.zeros((2, 6, 4), F)}, "w_packed has 768 elements, packed weights of this convolution have 576"),
        ({"bias": np.zeros(7, F)}, "bias is no vector of 8 elements"),
        ({"residual": np.zeros((2, 8, 1), F)}, "residual doesn't have the result's sizes"),
        ({"residual": np.zeros((8, 2), F)}, "residual doesn't have the result's sizes"),
        ({"geometry": Geometry((3,), (0,), (0,), (0,), (1,))}, "stride is 0 in dimension 0"),
        ({"geometry": Geometry((3, 3), (1,), (0,), (0,), (1,))}, "kernel has 2 elements instead of 1"),
        ({"geometry": Geometry((3,), (1,), (0, 0), (0,), (1,))}, "padding has 3 elements instead of 2"),
        ({"geometry": Geometry((3,), (1,), (0,), (0,), (1,), groups=3)}, "8 channels in and 8 out can't be divided into 3 groups"),
    ],
)  # fmt: skip
def test_refuses_what_does_not_fit(shim, change, message: str):
    case = Case(2, 8, 8, (4,), (3,), (1,), (0,), (1,))
    w_packed = np.zeros((1, 24, 32), F)
    arguments = {"x": np.zeros(case.input_shape, F), "w_packed": w_packed, "bias": None}
    with pytest.raises(ShimError, match="aoti_torch_cpu_ec_convolution: " + message):
        packed(shim, case, **{**arguments, **change})


def test_torchs_operator_refuses_what_does_not_fit(shim):
    case = Case(1, 4, 4, (5,), (3,), (1,), (0,), (1,))
    x, weight = np.zeros((1, 4, 5), F), np.zeros((4, 3, 3), F)
    for given, message in (
        ((x, weight, None), "the weight is for 3 channels, the input has 4"),
        ((x, np.zeros((4, 4, 3, 3), F), None), "the input has 3 dimensions, the weight 4"),
        ((x, np.zeros((4, 4, 3)), None), "input, weight and bias are not all float32"),
        ((x.astype(np.int64), np.zeros((4, 4, 3), np.int64), None), "a convolution of int64"),
    ):
        with pytest.raises(ShimError, match=message):
            plain(shim, case, *given)


def test_both_ways_of_grouping_are_tried():
    cases = [random_case(np.random.default_rng(1000 + seed)) for seed in range(160)]
    ways = {(is_channel_wise(c.groups, c.outputs), c.groups > 1, c.transposed) for c in cases}
    assert len(ways) == 6
