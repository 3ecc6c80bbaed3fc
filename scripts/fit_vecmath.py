"""Compute the minimax coefficients of edgecompile/runtime/native/math/vecmath*.h.

Remez's exchange on a dense Chebyshev grid in 60-digit arithmetic (mpmath). Each fit minimizes
max |weight(x) * (sum_k c_k v(x)^k - f(x))|; with weight = x^p / g(x) that is the relative error of
the function g that the polynomial is a part of. Single precision coefficients are rounded one by
one, from the most significant down, refitting the rest after each; or all at once, where what is
left to refit vanishes at an end, so that the exchange would miss the best.

Run: python scripts/fit_vecmath.py [name ...]   (needs mpmath, which torch brings along as sympy's)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpmath import cos, erf, erfc, exp, log, lu_solve, matrix, mp, mpf, pi, sin, tanh

mp.dps = 60
Real = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Fit:
    """One polynomial: sum c_k v(x)^k ~ f(x) on [lo, hi]; error measured as weight(x) * difference."""

    name: str
    degree: int
    lo: float
    hi: float
    f: Real
    v: Real
    weight: Real
    single: bool
    at_once: bool = False  # round single ones at once


def minimax(
    xs: list[mpf], target: list[mpf], basis: list[list[mpf]], weight: list[mpf]
) -> list[mpf]:
    """Coefficients of the basis by Remez's exchange over the points `xs`."""
    n = len(basis[0])
    pick = [round(i * (len(xs) - 1) / n) for i in range(n + 1)]
    coefficients: list[mpf] = []
    for _ in range(60):
        system = matrix(n + 1, n + 1)
        right = matrix(n + 1, 1)
        for row, i in enumerate(pick):
            for k in range(n):
                system[row, k] = basis[i][k]
            system[row, n] = (-1) ** row / weight[i]
            right[row] = target[i]
        solution = lu_solve(system, right)
        coefficients = [solution[k] for k in range(n)]
        error = [
            w * (sum(c * b for c, b in zip(coefficients, bs, strict=True)) - t)
            for w, bs, t in zip(weight, basis, target, strict=True)
        ]
        worst = max(abs(e) for e in error)
        if worst <= abs(solution[n]) * mpf("1.0001"):
            break
        # The best point of each run of one sign; then drop from the ends down to n + 1 points.
        runs: list[int] = []
        for i, e in enumerate(error):
            if runs and (e > 0) == (error[runs[-1]] > 0):
                if abs(e) > abs(error[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > n + 1:
            runs.pop(0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else -1)
        if len(runs) < n + 1:
            break
        pick = runs
    return coefficients


def fit(spec: Fit, points: int = 600) -> tuple[list[mpf], mpf]:
    """Coefficients of `spec` rounded to the lanes' type, lowest power first, and their error."""
    middle, radius = (mpf(spec.hi) + spec.lo) / 2, (mpf(spec.hi) - spec.lo) / 2
    xs = [middle - radius * cos(pi * (2 * i + 1) / (2 * points)) for i in range(points)]
    target = [spec.f(x) for x in xs]
    weight = [spec.weight(x) for x in xs]
    basis = [[spec.v(x) ** k for k in range(spec.degree + 1)] for x in xs]
    if spec.single and not spec.at_once:
        rounded: list[mpf] = []
        for k in range(spec.degree + 1):
            rest = minimax(xs, target, [b[k:] for b in basis], weight)
            kept = mpf(float(np.float32(float(rest[0]))))
            rounded.append(kept)
            target = [t - kept * b[k] for t, b in zip(target, basis, strict=True)]
    else:
        lane = np.float32 if spec.single else np.float64
        rounded = [mpf(float(lane(float(c)))) for c in minimax(xs, target, basis, weight)]
        target = [
            t - sum(c * b for c, b in zip(rounded, bs, strict=True))
            for t, bs in zip(target, basis, strict=True)
        ]
    worst = max(abs(w * t) for w, t in zip(weight, target, strict=True))
    return rounded, worst


def _erfcx_variable(t: mpf) -> mpf:
    return (t - 4) / (t + 4)


def _coarse_gelu(name: str, odd: Real) -> Fit:
    """Of x (1 + odd(x)) / 2 up to 4.5, where it becomes x."""
    edge = mpf("20.25")
    return Fit(
        name, 7, 1e-3, 4.499,
        lambda x: (odd(x) / (2 * x) - mpf(1) / 9) / (edge - x * x),
        lambda x: x * x, lambda x: x * x * (edge - x * x), True,
    )  # fmt: skip


HALF_LN2 = float(log(2) / 2) * 1.002  # the rounded quotient may miss the nearest integer a little
QUARTER_PI = float(pi / 4) * 1.0001

FITS = [
    # exp(r) = 1 + r + r^2 q(r)
    Fit("exp_f32", 4, -HALF_LN2, HALF_LN2, lambda r: (exp(r) - 1 - r) / r**2, lambda r: r,
        lambda r: r**2 / exp(r), True),
    # 2^r = 1 + r q(r)
    Fit("exp2_f32", 5, -0.501, 0.501, lambda r: (2**r - 1) / r, lambda r: r,
        lambda r: r / 2**r, True),
    # 2^r = q(r)
    Fit("exp2_coarse_f32", 3, 0.0, 1.0, lambda r: mpf(2)**r, lambda r: r,
        lambda r: 1 / mpf(2)**r, True, at_once=True),
    # tanh(x) = x + x^3 q(x^2)
    Fit("tanh_f32", 4, 1e-9, 0.626, lambda x: (tanh(x) - x) / x**3, lambda x: x * x,
        lambda x: x**3 / tanh(x), True),
    # erf(x) = x + x q(x^2)
    Fit("erf_f32_small", 5, 1e-9, 0.9251, lambda x: erf(x) / x - 1, lambda x: x * x,
        lambda x: x / erf(x), True),
    # erfc(x) = 2^q(x); what counts is the error of erf(x) = 1 - erfc(x)
    Fit("erf_f32_tail", 5, 0.924, 4.0, lambda x: log(erfc(x)) / log(2), lambda x: x,
        lambda x: erfc(x) * log(2), True),
    # erfc(a / sqrt(2)) = 2^(a q(a)); what counts is the error of erfc, and far out the shape
    Fit("gelu_f32", 7, 1e-4, 6.5, lambda a: log(erfc(a / mp.sqrt(2))) / log(2) / a, lambda a: a,
        lambda a: a * (erfc(a / mp.sqrt(2)) * log(2) / 2 + mpf("2e-10")), True),
    # gelu(x) = x / 2 + x^2 (1 / 9 + (4.5^2 - x^2) q(x^2)); what counts is its absolute error
    _coarse_gelu("gelu_erf_coarse_f32", lambda x: erf(x / mp.sqrt(2))),
    _coarse_gelu("gelu_tanh_coarse_f32",
                 lambda x: tanh(mp.sqrt(2 / pi) * (x + mpf("0.044715") * x**3))),
    # exp(r) - 1 = r + r^2 q(r)
    Fit("expm1_f64", 7, -HALF_LN2, HALF_LN2, lambda r: (exp(r) - 1 - r) / r**2, lambda r: r,
        lambda r: r**2 / (exp(r) - 1), False),
    # log((1 + z) / (1 - z)) = 2 z + z^3 q(z^2)
    Fit("log_f64", 5, 1e-9, 0.1716, lambda z: (log((1 + z) / (1 - z)) - 2 * z) / z**3,
        lambda z: z * z, lambda z: z**3 / log((1 + z) / (1 - z)), False),
    # sin(r) = r + r^3 q(r^2); cos(r) = 1 + r^2 q(r^2)
    Fit("sin_f64", 4, 1e-9, QUARTER_PI, lambda r: (sin(r) - r) / r**3, lambda r: r * r,
        lambda r: r**3 / sin(r), False),
    Fit("cos_f64", 5, 1e-9, QUARTER_PI, lambda r: (cos(r) - 1) / r**2, lambda r: r * r,
        lambda r: r**2 / cos(r), False),
    # atan(a) = a + a^3 q(a^2), |a| <= tan(pi/8)
    Fit("atan_f64", 7, 1e-9, 0.41422, lambda a: (mp.atan(a) - a) / a**3, lambda a: a * a,
        lambda a: a**3 / mp.atan(a), False),
    # exp(t^2) erfc(t) = q((t - 4) / (t + 4))
    Fit("erfcx_f64", 13, 0.0, 10.2, lambda t: exp(t * t) * erfc(t), _erfcx_variable,
        lambda t: 1 / (exp(t * t) * erfc(t)), False),
]  # fmt: skip


def main(names: list[str]) -> None:
    """Print each fit as a C++ array, lowest power first, with its error in bits."""
    for spec in FITS:
        if names and spec.name not in names:
            continue
        coefficients, worst = fit(spec)
        print(f"// {spec.name}: max weighted error 2^{float(mp.log(worst, 2)):.1f}")
        for c in coefficients:
            print(f"    {float(c):.9g}f," if spec.single else f"    {float(c):.17g},")


if __name__ == "__main__":
    main(sys.argv[1:])
