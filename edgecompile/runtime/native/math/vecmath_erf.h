// erf and the activations built on it in single precision; erfc over double lanes.
// Coefficients: minimax fits by scripts/fit_vecmath.py.
#pragma once

#include "math/vecmath_exp.h"

namespace ec {

// |x| < 0.925: x + x·q(x²). Beyond: 1 - 2^q(|x|), where q fits log2(erfc) with the weight that its
// error has in erf; 1 from 4 on.
template <class V>
EC_INLINE V verf(V x) {
  const V a = abs(x);
  constexpr float q_small[] = {0.128379151f,   -0.376124948f,  0.11281804f,
                               -0.0267657638f, 0.00499157049f, -0.000598141633f};
  const V small = fma(polynomial(x * x, q_small), x, x);
  constexpr float q_tail[] = {-0.00295825652f, -1.61520612f,  -0.940075576f,
                              -0.130605772f,   0.0221992247f, -0.00177001953f};
  const V t = polynomial(min(broadcast<V>(4.0f), a), q_tail);
  const V z = t + (kRoundF + 127);
  const V complement = exp2_of_remainder(t - (z - (kRoundF + 127))) * bits_as<V>(bits(z) << 23);
  return select(a < 0.925f, small, copysign(1.0f - complement, x));
}

// erfc(t) = exp(-t²)·erfcx(t) for t = |x|, reflected for negative x. erfcx, smooth and slowly
// falling, is a polynomial in (t - 4) / (t + 4) (the substitution of Shepherd and Laframboise,
// Math. Comp. 36 (1981) 249); t² is exact in double. 0 from 10.06 on.
template <class V>
EC_INLINE V verfc(V x) {
  return in_double(clamp(x, -10.2f, 10.2f), [](auto d) {
    using D = decltype(d);
    constexpr double q[] = {0.13699945762445764,     -0.25906804874295725,    0.21871967904386208,
                            -0.16425781817845242,    0.10896317231818414,     -0.063107782446767749,
                            0.031299149496656659,    -0.012844224829083728,   0.0040593912214408681,
                            -0.0007984044505932313,  -1.7877378723682801e-05, 8.061527873285109e-05,
                            -2.8435332430193885e-05, -9.7996305654419555e-06};
    const D t = abs(d);
    const D r = polynomial((t - 4.0) / (t + 4.0), q) * exp_double(-(t * t));
    return select(d < 0.0, 2.0 - r, r);
  });
}

// x·Φ(x) = max(x, 0) - a/2·erfc(a/√2) with a = |x|: one exponential without a case for small a, as
// 2^(a·q(a)) has an error in proportion to a there. From 9.97 on it is 2^-127, flushed to 0; beyond
// 12 the sum of an infinite polynomial would be no number.
template <class V>
EC_INLINE V vgelu_erf(V x) {
  constexpr float q[] = {-1.15110517f,     -0.459208518f,    -0.0524952561f,  0.00706215668f,
                         -0.000136017872f, -0.000186544799f, 3.94531708e-05f, -2.84142425e-06f};
  const V a = min(broadcast<V>(12.0f), abs(x));
  const V t = max(broadcast<V>(-127.0f), a * polynomial(a, q));
  const V z = t + (kRoundF + 127);
  const V complement = exp2_of_remainder(t - (z - (kRoundF + 127))) * bits_as<V>(bits(z) << 23);
  return fma(-0.5f * a, complement, max(V{}, x));
}

// torch's gelu(approximate="tanh").
template <class V>
EC_INLINE V vgelu_tanh(V x) {
  const V inner = 0.79788456080286536f * fma(x * x * x, broadcast<V>(0.044715f), x);
  return 0.5f * x * (1.0f + vtanh(inner));
}

// x·(1/2 + x·(1/9 + (4.5² - x²)·q(x²))) between -4.5 and 4.5; beyond x, or next to 0. For results
// whose factors were rounded to eight bits or so: absolute errors up to 2^-14.4, in half of the
// time.
template <class V>
EC_INLINE V coarse_gelu(V x, const float (&q)[8]) {
  const V low = max(broadcast<V>(-4.5f), x);
  const V t = min(broadcast<V>(4.5f), low);
  const V square = t * t;
  const V p = fma(20.25f - square, polynomial(square, q), broadcast<V>(1.0f / 9));
  return low * fma(t, p, broadcast<V>(0.5f));
}

template <class V>
EC_INLINE V vgelu_erf_coarse(V x) {
  constexpr float q[] = {0.0142023452f,   -0.00255678804f,  0.000346858258f, -3.40443548e-05f,
                         2.32917364e-06f, -1.03829322e-07f, 2.67644373e-09f, -3.00005541e-11f};
  return coarse_gelu(x, q);
}

template <class V>
EC_INLINE V vgelu_tanh_coarse(V x) {
  constexpr float q[] = {0.0141993454f,  -0.00256712642f,  0.000353726762f, -3.55908778e-05f,
                         2.5018378e-06f, -1.14241196e-07f, 3.00163427e-09f, -3.41301883e-11f};
  return coarse_gelu(x, q);
}

// x / (1 + exp(-x)).
template <class V>
EC_INLINE V vsilu(V x) {
  return x * vsigmoid(x);
}

}  // namespace ec
