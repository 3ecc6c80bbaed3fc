"""The vector mathematics, through Sleef's entry points where there is one: errors in ulp over all of
float32, every width this CPU has; wider ones are compiled."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.native.conftest import NATIVE, Build, sanitizer_flags
from tests.native.kernels.vecmath_check import (
    FUNCTIONS,
    SPECIALS,
    Function,
    Harness,
    host_levels,
    samples,
    worst_error,
)
from tests.native.sweep import sweep

SOURCES = (Path(__file__).parent / "vecmath_harness.cpp", "math/vecmath_exports.cpp")


@pytest.fixture(scope="session")
def harness(build_native: Build, march: str) -> Harness:
    return Harness(build_native("vecmath", SOURCES, march=march))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
def test_error_is_within_two_ulp(
    harness: Harness, function: Function, record_property: Callable[[str, object], None]
) -> None:
    for lanes in harness.float_lanes:
        worst = worst_error(harness, function, lanes, n=120_000)
        record_property(f"{function.name} x{lanes}", str(worst))
        print(f"{function.name} x{lanes}: {worst}")
        assert worst.ulp <= function.ulp, f"x{lanes}: {worst}"


INEXACT = [f for f in FUNCTIONS if f.ulp > 0 and not f.name.startswith("sincos")]


@sweep("function", INEXACT)
def test_reference_is_exact_enough(harness: Harness, function: Function) -> None:
    """The reference itself against 40-digit arithmetic: 2^-45 is 2^-21 of a float's ulp."""
    mpmath = pytest.importorskip("mpmath")
    exact = {
        "exp2": lambda x: mpmath.mpf(2) ** x,
        "exp2_normal": lambda x: mpmath.mpf(2) ** x,
        "exp10": lambda x: mpmath.mpf(10) ** x,
        "log2": lambda x: mpmath.log(x) / mpmath.log(2),
        "tgamma": mpmath.gamma,
        "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))),
        "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
        "rsqrt": lambda x: 1 / mpmath.sqrt(x),
        "pow": mpmath.power,
    }
    f = exact.get(function.name) or getattr(mpmath, function.name)
    rng = np.random.default_rng(5)
    lo = max(function.lo, -126.0) if function.name == "exp2_normal" else function.lo
    a = np.concatenate([rng.uniform(lo, function.hi, 100), rng.uniform(-1, 1, 50)])
    a = a.astype(np.float32)
    b = rng.uniform(-4, 4, a.size).astype(np.float32) if function.arity == 2 else None
    got = harness.reference(function.name, a, b)
    with mpmath.workdps(40):
        checked = 0
        for i in np.flatnonzero(np.isfinite(got) & (got != 0)):
            arguments = [mpmath.mpf(float(a[i]))]
            if b is not None:
                arguments.append(mpmath.mpf(float(b[i])))
            want = f(*arguments)
            assert abs(got[i] - want) <= abs(want) * mpmath.mpf(2) ** -45, arguments
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("name", ["gelu_erf", "gelu_tanh", "silu"])
def test_activations_are_right_to_their_argument_s_precision(harness: Harness, name: str) -> None:
    """Formulas that cancel for negative x (as torch's do): the error is measured against |x|."""
    a, _ = samples(Function(name, -12, 12), 60_000, seed=1)
    a = a[np.isfinite(a) & (np.abs(a) < 1e12)]  # beyond, x³ in gelu_tanh overflows in torch too
    want = harness.reference(name, a)
    for lanes in harness.float_lanes:
        error = np.abs(harness.run(name, lanes, a).astype(np.float64) - want)
        assert (error <= 2.0**-23 * np.abs(a) + 1e-44).all()


@pytest.mark.parametrize("name", ["gelu_erf", "gelu_tanh"])
def test_coarse_activations_are_as_near_as_they_say(harness: Harness, name: str) -> None:
    a, _ = samples(Function(name, -12, 12), 60_000, seed=1)
    a = np.concatenate([a[np.isfinite(a) & (np.abs(a) < 1e4)], np.linspace(-5, 5, 50_001)])
    a = a.astype(np.float32)
    want = harness.reference(name, a)
    far = np.array([4.5, 5, 1e4, 1e30, -1e4, -1e30, -np.inf, np.inf, np.nan], np.float32)
    for lanes in harness.float_lanes:
        error = np.abs(harness.run(f"{name}_coarse", lanes, a).astype(np.float64) - want)
        assert (error <= 2.0**-14.4 + 2.0**-23 * np.abs(a)).all()
        assert error.max() > 2.0**-15.5  # what is measured is the coarse one
        beyond = harness.run(f"{name}_coarse", lanes, far)
        np.testing.assert_allclose(beyond[:4], far[:4], rtol=2**-22)
        assert (np.abs(beyond[4:7]) < 1e-6).all()
        assert beyond[7] == np.inf and np.isnan(beyond[8])


@sweep("name", [f.name for f in FUNCTIONS if f.name != "exp2_normal"])
def test_lanes_do_not_depend_on_their_neighbours(harness: Harness, name: str) -> None:
    """One argument that takes a slow or special path must not change the others' results."""
    usual = np.linspace(0.1, 0.9, 16, dtype=np.float32)
    second = np.linspace(0.3, 2.9, 16, dtype=np.float32)
    for lanes in harness.float_lanes:
        alone = harness.run(name, lanes, usual, second)
        for special in SPECIALS:
            mixed = usual.copy()
            mixed[5] = special
            got = harness.run(name, lanes, mixed, second)
            others = np.arange(16) != 5
            # The C library's sine may differ from ours by a unit where both are right.
            np.testing.assert_allclose(got[others], alone[others], rtol=2**-22)


DOUBLE_UNARY = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "sincos.sin": np.sin,
    "sincos.cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": lambda x: np.arccosh(x + 1), "atanh": np.arctanh, "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc), "lgamma": np.vectorize(math.lgamma),
    "tgamma": np.vectorize(math.gamma), "exp10": lambda x: 10.0**x,
}  # fmt: skip
DOUBLE_BINARY = {
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot, "fmod": np.fmod,
    "nextafter": np.nextafter, "copysign": np.copysign,
}  # fmt: skip


@sweep("name", [*DOUBLE_UNARY, *DOUBLE_BINARY])
def test_double_entry_points(harness: Harness, name: str) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.uniform(0.01, 0.99, 37), rng.uniform(-3, 3, 37)
    want = DOUBLE_BINARY[name](a, b) if name in DOUBLE_BINARY else DOUBLE_UNARY[name](a)
    for lanes in (n // 2 for n in harness.float_lanes):
        shifted = a + 1 if name == "acosh" else a
        got = harness.run_double(name, lanes, shifted, b if name in DOUBLE_BINARY else None)
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=0)


def test_remainders_of_any_quotient_are_exact(harness: Harness) -> None:
    """Also where the quotient is so large, or the divisor so small, that no digit of it is known."""
    rng = np.random.default_rng(11)
    count = 1 << 16
    with np.errstate(over="ignore", invalid="ignore"):
        for exponents in ((-4, 4), (-149, 128)):
            x, y = (
                np.ldexp(rng.uniform(-2, 2, count), rng.integers(*exponents, count))
                for _ in range(2)
            )
            x, y = x.astype(np.float32), y.astype(np.float32)
            x[::5] = np.float32(rng.integers(-(2**20), 2**20, len(x[::5]))) * y[::5]  # no rest
            want = np.fmod(x, y)
            for lanes in harness.float_lanes:
                got = harness.run("fmod", lanes, x, y)
                np.testing.assert_array_equal(got, want)
                np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_functions_by_libm_s_names(build_native: Build) -> None:
    library = ctypes.CDLL(str(build_native("vecmath_exports", ["math/vecmath_exports.cpp"])))
    inf, nan = math.inf, math.nan
    pairs = [
        (3.0, -4.0),
        (0.0, 0.0),
        (1e-42, 1e-42),
        (3e38, 3e38),
        (-inf, nan),
        (nan, inf),
        (1, nan),
    ]
    for name, c, dtype, numpy_s in (
        ("ec_hypotf", ctypes.c_float, np.float32, np.hypot),
        ("ec_hypot", ctypes.c_double, np.float64, np.hypot),
        ("ec_fmodf", ctypes.c_float, np.float32, np.fmod),
        ("ec_fmod", ctypes.c_double, np.float64, np.fmod),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = c, [c, c]
        with np.errstate(over="ignore", invalid="ignore"):
            for x, y in [*pairs, *np.random.default_rng(3).normal(size=(99, 2))]:
                want = numpy_s(dtype(x), dtype(y))
                np.testing.assert_allclose(dtype(function(x, y)), want, rtol=np.finfo(dtype).eps)


def test_build_has_the_level_s_width(harness: Harness, march: str) -> None:
    expected = {"x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}
    expected |= {"x86-64-avxvnni": 32, "x86-64-avx512bf16": 64, "x86-64-amx": 64}
    assert harness.vector_bytes == expected.get(march, 16)


# ---- The library's symbols ----------------------------------------------------------------------


def sleef_names_in_torch() -> set[str]:
    """Every Sleef function that torch's at::vec headers for x86 and NEON may call."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("torch is not installed")
    include = Path(spec.submodule_search_locations[0]) / "include"
    vec = include / "ATen" / "cpu" / "vec"
    files = [*vec.glob("*.h")]
    for folder in ("vec128", "vec256", "vec512"):
        files += (vec / folder).glob("*.h")  # not vsx/, zarch/
    files += (include / "torch" / "csrc" / "inductor").rglob("*.h")
    names: set[str] = set()
    for path in files:
        text = path.read_text()
        names |= set(re.findall(r"\bSleef_[a-z0-9]+[fd](?:2|4|8|16)(?:_u\d\d)?\b", text))
        # The NEON headers paste the name from the macro's argument.
        for macro, pasted in re.findall(
            r"#define (\w+)\(name\)(?:[^#]|##)*?Sleef_##name##(f4_u\d\d)", text
        ):
            for name in re.findall(rf"\b{macro}\((\w+)\)", text):
                if name != "name":
                    names.add(f"Sleef_{name}{pasted}")
    return names


def defined_symbols(library: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listing.stdout.splitlines()}


@pytest.mark.parametrize(("level", "widths"), [
    ("x86-64-v2", {"f4", "d2"}),
    ("x86-64-v3", {"f4", "d2", "f8", "d4"}),
    ("x86-64-v4", {"f4", "d2", "f8", "d4", "f16", "d8"}),
])  # fmt: skip
def test_every_sleef_name_is_exported(build_native: Build, level: str, widths: set[str]) -> None:
    """Also compiles each level, those included that this CPU can't run."""
    if host_levels() == ["armv8-a"]:
        pytest.skip("an x86-64 compiler is needed")
    library = build_native("vecmath_exports", ["math/vecmath_exports.cpp"], march=level)
    exported = defined_symbols(library)
    names = sleef_names_in_torch()
    assert len(names) > 150  # the search itself works: vec256 alone has some seventy
    assert {"Sleef_expf4_u10", "Sleef_powf4_u10", "Sleef_sincosf8_u10", "Sleef_fmodd8"} <= names

    def width(name: str) -> str:
        found = re.search(r"([fd](?:2|4|8|16))(?:_u\d\d)?$", name)
        assert found
        return found[1]

    missing = sorted(n for n in names if width(n) in widths and f"ec_{n}" not in exported)
    assert not missing
    extra = {s for s in exported if s.startswith("ec_Sleef_") and width(s) not in widths}
    assert not extra, "vectors that the level has no registers for"


@pytest.mark.skipif(bool(sanitizer_flags()), reason="it needs the sanitizers' library, too")
def test_library_needs_nothing_but_libm(build_native: Build) -> None:
    # Linked as the runtime is: on aarch64 a long double's arithmetic is libgcc's.
    library = build_native(
        "vecmath_exports", ["math/vecmath_exports.cpp"], flags=["-static-libgcc"]
    )
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True
    )
    undefined = {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()}
    runtime = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
    runtime |= {"__cxa_finalize", "__stack_chk_fail"}
    libm = {f"{name}{suffix}" for name in ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma_r", "tgamma", "pow", "atan2", "hypot", "fmod", "nextafter", "sincos"] for suffix in ("", "f")}  # fmt: skip
    assert undefined <= runtime | libm | {"sqrtl"}


def test_no_intrinsics() -> None:
    """Written once for every instruction set: what is special to one stands behind an #if."""
    for path in (NATIVE / "math").iterdir():
        text = path.read_text()
        assert "immintrin" not in text
        assert "__builtin_ia32" not in text
        assert "_mm" not in text
