// exp, exp2, sigmoid, tanh in single precision; expm1, exp10, sinh, cosh over double lanes.
//
// Coefficients: minimax fits by scripts/fit_vecmath.py. The double-lane functions need to be right
// to ~2^-35 only, since their results are rounded to float once, at the end; that makes them
// correct to a little over half an ulp everywhere without any error-free transformations, which
// would need an FMA.
#pragma once

#include "math/simd.h"

namespace ec {

constexpr float kInfinityF = __builtin_inff();
constexpr float kNanF = __builtin_nanf("");
constexpr float kLog2E = 1.44269504f;

// c[0] + c[1]·x + … by Horner's rule.
template <class V, class E, int N>
EC_INLINE V polynomial(V x, const E (&c)[N]) {
  V p = broadcast<V>(c[N - 1]);
#pragma GCC unroll 16
  for (int i = N - 2; i >= 0; --i) p = fma(p, x, broadcast<V>(c[i]));
  return p;
}

// A float function computed in double lanes: f maps a vector of doubles to one.
template <class V, class F>
EC_INLINE V in_double(V x, const F& f) {
  using D = Vector<double, kLanes<V> / 2>;
  const Halves<V> h = split(x);
  return join(convert<Half<V>>(f(convert<D>(h.low))), convert<Half<V>>(f(convert<D>(h.high))));
}
template <class V, class F>
EC_INLINE V in_double(V x, V y, const F& f) {
  using D = Vector<double, kLanes<V> / 2>;
  const Halves<V> h = split(x), g = split(y);
  return join(convert<Half<V>>(f(convert<D>(h.low), convert<D>(g.low))),
              convert<Half<V>>(f(convert<D>(h.high), convert<D>(g.high))));
}

// x limited to [low, high]; NaN stays NaN.
template <class V>
EC_INLINE V clamp(V x, Element<V> low, Element<V> high) {
  return min(broadcast<V>(high), max(broadcast<V>(low), x));
}

// ---- Single precision ---------------------------------------------------------------------------

// 1.5·2^23: adding it leaves the nearest integer in the low bits of the sum.
constexpr float kRoundF = 12582912.0f;

// exp(x) = 2^n · exp(r): n = round(x / ln 2), |r| <= ln(2) / 2. ln 2 is split so that n·kLn2High
// (9 significant bits) is exact, with or without an FMA.
template <class V>
EC_INLINE V exp_of_remainder(V x, V n) {
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  V r = fma(n, broadcast<V>(-kLn2High), x);
  r = fma(n, broadcast<V>(-kLn2Low), r);
  constexpr float q[] = {0.49999994f, 0.166665152f, 0.0416680835f, 0.00836934987f, 0.00138404302f};
  return fma(polynomial(r, q), r * r, r) + 1.0f;
}

// 2^r for |r| <= 1/2.
template <class V>
EC_INLINE V exp2_of_remainder(V r) {
  constexpr float q[] = {0.693147242f,  0.240226552f,   0.0555027276f,
                         0.0096170241f, 0.00134195725f, 0.000158528448f};
  return fma(polynomial(r, q), r, broadcast<V>(1.0f));
}

// p·2^n where the product may overflow or be subnormal: two steps, only the second of which rounds.
template <class V>
EC_INLINE V scale_by_power(V p, IntOf<V> n) {
  const IntOf<V> half = n >> 1;
  return p * bits_as<V>((half + 127) << 23) * bits_as<V>((n - half + 127) << 23);
}

template <class V>
EC_INLINE V vexp(V x) {
  x = clamp(x, -104.0f, 89.0f);  // the result is 0, or infinity, at the ends
  const V z = fma(x, broadcast<V>(kLog2E), broadcast<V>(kRoundF));
  return scale_by_power(exp_of_remainder(x, z - kRoundF), bits(z) - bits(broadcast<V>(kRoundF)));
}

// exp2 for softmax: x <= 127, -inf included. Cheaper than vexp2: what would be subnormal is 0 from
// -126.5 down.
template <class V>
EC_INLINE V vexp2_normal(V x) {
  const V c = max(broadcast<V>(-127.0f), x);
  // With the exponent's bias in the constant the sum's low bits are the exponent field, 0 for -127.
  const V z = c + (kRoundF + 127);
  return exp2_of_remainder(c - (z - (kRoundF + 127))) * bits_as<V>(bits(z) << 23);
}

template <class V>
EC_INLINE V vexp2(V x) {
  x = clamp(x, -151.0f, 129.0f);
  const V z = x + kRoundF;
  return scale_by_power(exp2_of_remainder(x - (z - kRoundF)),
                        bits(z) - bits(broadcast<V>(kRoundF)));
}

// 1 / (1 + exp(-x)). With e = exp(-|x|) and q = e / (1 + e) that is 1 - q, or e·(1 - q) for
// negative x: neither end overflows, and q's rounding errors weigh little in the result.
template <class V>
EC_INLINE V vsigmoid(V x) {
  const V e = vexp(-abs(x));
  const V q = e / (e + 1.0f);
  const V m = select(x < 0.0f, e, broadcast<V>(1.0f));
  return fma(-m, q, m);
}

// |x| < 0.625: odd polynomial. Else 1 - 2 / (exp(2|x|) + 1), whose subtrahend is below 0.45, so
// that the errors of exp and of the quotient weigh less than half. 1 from 9.02 on.
template <class V>
EC_INLINE V vtanh(V x) {
  const V a = abs(x);
  const V square = a * a;
  constexpr float q[] = {-0.333332807f, 0.133314058f, -0.0537365153f, 0.0206281673f,
                         -0.0056922962f};
  const V small = fma(polynomial(square, q) * square, a, a);
  const V c = min(broadcast<V>(20.0f), a + a);
  const V z = fma(c, broadcast<V>(kLog2E), broadcast<V>(kRoundF + 127));
  const V e = exp_of_remainder(c, z - (kRoundF + 127)) * bits_as<V>(bits(z) << 23);
  const V large = 1.0f - 2.0f / (e + 1.0f);
  return copysign(select(a < 0.625f, small, large), x);
}

// ---- Double lanes -------------------------------------------------------------------------------

constexpr double kLn2 = 0.69314718055994530942;
// 1.5·2^52 plus the exponent's bias, as above.
constexpr double kRoundD = 6755399441055744.0 + 1023;

// exp(r) - 1 for |r| <= ln(2) / 2, relative error 2^-43.
template <class D>
EC_INLINE D expm1_of_remainder(D r) {
  constexpr double q[] = {0.49999999999766609,    0.16666666666560362,   0.041666666916615219,
                          0.0083333334243896207,  0.0013888816661812159, 0.00019841072436728986,
                          2.4878879649402504e-05, 2.769814556455619e-06};
  return fma(polynomial(r, q), r * r, r);
}

// 2^t, |t| <= 1000.
template <class D>
EC_INLINE D exp2_double(D t) {
  const D z = t + kRoundD;
  const D p = expm1_of_remainder((t - (z - kRoundD)) * kLn2) + 1.0;
  return p * bits_as<D>(bits(z) << 52);
}

// exp(x), |x| <= 700.
template <class D>
EC_INLINE D exp_double(D x) {
  const D z = x * (1 / kLn2) + kRoundD;
  const D p = expm1_of_remainder(x - (z - kRoundD) * kLn2) + 1.0;
  return p * bits_as<D>(bits(z) << 52);
}

// exp(x) - 1, |x| <= 700; small arguments keep their relative accuracy, since then n is 0.
template <class D>
EC_INLINE D expm1_double(D x) {
  const D z = x * (1 / kLn2) + kRoundD;
  const D p = expm1_of_remainder(x - (z - kRoundD) * kLn2);
  const D scale = bits_as<D>(bits(z) << 52);
  return p * scale + (scale - 1.0);
}

template <class V>
EC_INLINE V vexpm1(V x) {
  const V r = in_double(clamp(x, -104.0f, 89.0f), [](auto d) { return expm1_double(d); });
  return select(x == 0.0f, x, r);  // keeps -0
}

template <class V>
EC_INLINE V vexp10(V x) {
  return in_double(clamp(x, -46.0f, 39.0f),
                   [](auto d) { return exp2_double(d * 3.3219280948873623479); });
}

template <class V>
EC_INLINE V vsinh(V x) {
  const V r = in_double(min(broadcast<V>(90.0f), abs(x)), [](auto d) {
    const auto e = expm1_double(d);
    return 0.5 * (e + e / (e + 1.0));
  });
  return copysign(r, x);
}

template <class V>
EC_INLINE V vcosh(V x) {
  return in_double(clamp(x, -90.0f, 90.0f), [](auto d) {
    const auto e = exp_double(d);
    return 0.5 * (e + 1.0 / e);
  });
}

}  // namespace ec
