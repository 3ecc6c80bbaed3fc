"""Measure the native vector functions in ulp against the C library's long double.

Used by test_vecmath.py, and by hand on a machine that has another instruction set; it needs
Python, numpy and g++ (--compiler) alone:

    python tests/native/kernels/vecmath_check.py --march x86-64-v4 [--samples 4000000] [--function exp ...]
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "edgecompile" / "runtime" / "native"
FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
    "-fvisibility=hidden", "-fno-exceptions", "-Wall", "-Wextra", "-Werror",
)  # fmt: skip
# What /proc/cpuinfo calls the features that set a level apart.
LEVELS = {
    "x86-64-v2": {"sse4_2", "ssse3", "popcnt"},
    "x86-64-v3": {"avx2", "fma", "bmi2"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Function:
    """A float function: its name in the harness, where to look most closely, its bound in ulp."""

    name: str
    lo: float
    hi: float
    arity: int = 1
    ulp: float = 2.0


FUNCTIONS = (
    Function("exp", -105, 90),
    Function("exp2_normal", -130, 127),
    Function("exp2", -151, 130),
    Function("exp10", -46, 39),
    Function("expm1", -20, 90),
    Function("log", 0, 4),
    Function("log2", 0, 4),
    Function("log10", 0, 4),
    Function("log1p", -1, 4),
    Function("sin", -2000, 2000),
    Function("cos", -2000, 2000),
    Function("sincos.sin", -30, 30),
    Function("sincos.cos", -30, 30),
    Function("tan", -2000, 2000),
    Function("asin", -1.01, 1.01),
    Function("acos", -1.01, 1.01),
    Function("atan", -20, 20),
    Function("sinh", -91, 91),
    Function("cosh", -91, 91),
    Function("tanh", -11, 11),
    Function("asinh", -20, 20),
    Function("acosh", 0.9, 20),
    Function("atanh", -1.01, 1.01),
    Function("erf", -5, 5),
    Function("erfc", -5, 11),
    Function("lgamma", -20, 40),
    Function("tgamma", -20, 40),
    Function("sigmoid", -105, 30),
    Function("sqrt", 0, 4, ulp=0.5),
    Function("rsqrt", 0, 4),
    Function("pow", 0, 40, arity=2),
    Function("atan2", -4, 4, arity=2),
    Function("hypot", -4, 4, arity=2),
    Function("fmod", -100, 100, arity=2, ulp=0.0),
    Function("nextafter", -4, 4, arity=2, ulp=0.0),
    Function("copysign", -4, 4, arity=2, ulp=0.0),
)

SPECIALS = np.array(
    [
        *[0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, np.inf, -np.inf, np.nan],
        *[1e-45, -1e-45, 1.1754942e-38, -1.1754942e-38, 1.17549435e-38],
        *[3.4028235e38, -3.4028235e38, 1e10, -1e22, 1e38],
        *[16777215.0, -16777215.0, 16777216.0, 33554434.0, 1048576.0, 1048577.0],
        *[0.99999994, 1.0000001, -0.99999994, -1.0000001, 88.722839, 88.7229, -87.336, -87.33],
        *[-103.9, -104.0, 0.625, 0.62499994, 0.925, 0.92499995, 3.9192059, 10.05, 9.0109],
        *[1.5707964, 3.1415927, 128.0, 127.99999, -126.0, -149.0, -149.5, -150.0, 38.53184],
        *[-45.0, 0.34657359, 0.41421357, -126.5, -127.0],
    ],
    dtype=np.float32,
)


def host_levels() -> list[str]:
    """The -march levels that this machine can run; ["armv8-a"] on aarch64."""
    if platform.machine() == "aarch64":
        return ["armv8-a"]
    text = Path("/proc/cpuinfo").read_text()
    flags = set(next(x for x in text.splitlines() if x.startswith("flags")).split())
    return [level for level, needed in LEVELS.items() if needed <= flags]


def build(march: str, output: Path, compiler: str = "g++") -> Path:
    """Compile the harness with the entry points for `march`; returns the shared library."""
    sources = [str(HERE / "vecmath_harness.cpp"), str(NATIVE / "math/vecmath_exports.cpp")]
    command = [compiler, *FLAGS, f"-march={march}", f"-I{NATIVE}", "-shared", *sources]
    subprocess.run([*command, "-o", str(output)], check=True)
    return output


class Harness:
    """The compiled functions, over numpy arrays."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.harness_broadcast.restype = ctypes.c_float
        self.vector_bytes: int = self._library.harness_vector_bytes()

    @property
    def float_lanes(self) -> list[int]:
        """The widths of float vectors in this build."""
        return [n for n in (4, 8, 16) if 4 * n <= self.vector_bytes]

    def run_at(self, name: str, lanes: int, a: int, b: int | None, out: int, n: int) -> None:
        """The float function on raw addresses. Raises KeyError when the build lacks it."""
        status = self._library.harness_run_float(
            name.encode(), lanes, *map(ctypes.c_void_p, (a, b, out)), ctypes.c_int64(n)
        )
        if status != 0:
            raise KeyError(f"{name} at {lanes} lanes")

    def run(self, name: str, lanes: int, a: Floats, b: Floats | None = None) -> Floats:
        """name(a, b), element by element."""
        out = np.full_like(a, 123.0)
        b_address = None if b is None else b.ctypes.data
        self.run_at(name, lanes, a.ctypes.data, b_address, out.ctypes.data, a.size)
        return out

    def run_double(self, name: str, lanes: int, a: Doubles, b: Doubles | None = None) -> Doubles:
        """The double function's values."""
        out = np.full_like(a, 123.0)
        b_pointer = None if b is None else b.ctypes.data_as(ctypes.c_void_p)
        status = self._library.harness_run_double(
            name.encode(), lanes, a.ctypes.data_as(ctypes.c_void_p), b_pointer,
            out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(a.size),
        )  # fmt: skip
        if status != 0:
            raise KeyError(f"{name} at {lanes} lanes of double")
        return out

    def reference(self, name: str, a: Floats, b: Floats | None = None) -> Doubles:
        """The exact value rounded to double, or nearly so (long double inside)."""
        out = np.empty(a.shape, np.float64)
        b_pointer = None if b is None else b.ctypes.data_as(ctypes.c_void_p)
        status = self._library.harness_reference(
            name.encode(), a.ctypes.data_as(ctypes.c_void_p), b_pointer,
            out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(a.size),
        )  # fmt: skip
        if status != 0:
            raise KeyError(name)
        return out

    def lanes(self, lanes: int, kind: int, a: Floats, b: Floats, n: int = 0) -> Floats:
        """One operation of simd.h on one vector; `kind` as in the harness."""
        out = np.full(lanes, 123.0, np.float32)
        pointers = (x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, out))
        if self._library.harness_lanes(lanes, kind, *pointers, ctypes.c_int64(n)) != 0:
            raise KeyError(f"{lanes} lanes")
        return out

    def broadcast(self, x: float) -> np.float32:
        """broadcast(x), one lane of it."""
        return np.float32(self._library.harness_broadcast(ctypes.c_float(x)))


def samples(function: Function, n: int, seed: int) -> tuple[Floats, Floats | None]:
    """Arguments: special values (all pairs), every kind of bit pattern, and the range that counts.

    The number of them is no multiple of any vector's width.
    """
    rng = np.random.default_rng(seed)

    def draw(count: int) -> Floats:
        bit_patterns = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
        near = rng.uniform(function.lo, function.hi, count).astype(np.float32)
        tiny = np.ldexp(rng.uniform(-1, 1, count // 4), rng.integers(-140, 2, count // 4))
        return np.concatenate([bit_patterns, near, tiny.astype(np.float32)])

    infinity = np.float32(np.inf)
    with np.errstate(over="ignore", under="ignore"):
        above, below = np.nextafter(SPECIALS, infinity), np.nextafter(SPECIALS, -infinity)
    special = np.concatenate([SPECIALS, above, below])
    if function.name == "exp2_normal":  # defined up to 127, and for NaN
        special = special[~(special > 127)]
    body = draw(n // 2)
    if function.name == "exp2_normal":
        body = body[~(body > 127)]
    if function.name in {"sin", "cos", "tan", "sincos.sin", "sincos.cos"}:
        # Next to the multiples of pi/2, where the reduction cancels most.
        turns = rng.integers(1, 700_000, body[::4].size)
        body[::4] = (turns * (np.pi / 2)).astype(np.float32)
    body = body[: body.size - (body.size + special.size) % 16 + 3]
    if function.arity == 1:
        return np.concatenate([special, body]), None
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    other = draw(n // 2)[: body.size]
    if function.name == "pow":  # also: results in range, whole powers
        other[::3] = rng.uniform(-8, 8, other[::3].size)
        other[::5] = rng.integers(-40, 40, other[::5].size)
        body[::2] = np.exp2(rng.uniform(-20, 20, body[::2].size))
        near_one = body[1::6]
        body[1::6] = 1 + np.float32(0.001) * rng.standard_normal(near_one.size)
    return np.concatenate([a, body]), np.concatenate([b, other]).astype(np.float32)


def ulp_errors(got: Floats, want: Doubles) -> Doubles:
    """|got - want| in units of float32's last place at `want`; inf for a wrong NaN, infinity or
    sign of zero. Overflow counts as if the exponent went on, so that rounding to infinity from
    just under 2^128 is half an ulp."""
    limit = 2.0**128
    reference = np.clip(want, -limit, limit)
    with np.errstate(invalid="ignore"):  # signalling NaN
        value = np.clip(got.astype(np.float64), -limit, limit)
    exponent = np.frexp(np.where(np.isfinite(reference), reference, 1.0))[1]
    ulp = np.ldexp(1.0, np.clip(exponent - 24, -149, 104))
    with np.errstate(invalid="ignore"):
        error = np.abs(value - reference) / ulp
    wrong_nan = np.isnan(got) != np.isnan(want)
    wrong_infinity = np.isinf(want) & (got != want)
    wrong_sign = (want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want))
    error[np.isnan(got) & np.isnan(want)] = 0.0
    error[wrong_nan | wrong_infinity | wrong_sign] = np.inf
    return error


@dataclass(frozen=True)
class Worst:
    """The largest error met, and where."""

    ulp: float
    a: float
    b: float
    got: float
    want: float

    def __str__(self) -> str:
        return f"{self.ulp:.3f} ulp at ({self.a!r}, {self.b!r}): {self.got!r} for {self.want!r}"


def worst_error(
    harness: Harness, function: Function, lanes: int, n: int = 400_000, seed: int = 0
) -> Worst:
    """The largest error of a function over about n samples."""
    a, b = samples(function, n, seed)
    want = harness.reference(function.name, a, b)
    got = harness.run(function.name, lanes, a, b)
    error = ulp_errors(got, want)
    i = int(np.argmax(error))
    second = float("nan") if b is None else float(b[i])
    return Worst(float(error[i]), float(a[i]), second, float(got[i]), float(want[i]))


def main() -> int:
    """Report every function's worst error; the exit status is 1 when one is over its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--march", action="append", help="default: every level of this machine")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--function", action="append", help="default: all")
    options = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        for march in options.march or host_levels():
            harness = Harness(build(march, Path(folder) / f"{march}.so", options.compiler))
            for function in FUNCTIONS:
                if options.function and function.name not in options.function:
                    continue
                for lanes in harness.float_lanes:
                    worst = worst_error(harness, function, lanes, options.samples, options.seed)
                    over = worst.ulp > function.ulp
                    status |= over
                    mark = "  OVER" if over else ""
                    print(f"{march:10} x{lanes:<2} {function.name:10} {worst}{mark}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
