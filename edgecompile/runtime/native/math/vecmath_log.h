// Logarithms, pow and the inverse hyperbolic functions over double lanes, rounded to float once.
// Coefficients: minimax fits by scripts/fit_vecmath.py.
#pragma once

#include "math/vecmath_exp.h"

namespace ec {

// x = m·2^e with m in [sqrt(1/2), sqrt(2)); x positive, finite and normal, which every positive
// float is once it is a double.
template <class D>
struct Decomposed {
  D m, e;
};
template <class D>
EC_INLINE Decomposed<D> decompose(D x) {
  constexpr uint64_t kOne = 0x3ff0000000000000, kRootHalf = 0x3fe6a09e667f3bcd;
  constexpr uint64_t kMantissa = 0x000fffffffffffff, kTwoTo52 = 0x4330000000000000;
  const UintOf<D> k = bits_as<UintOf<D>>(x) + (kOne - kRootHalf);
  // No vector conversion of 64-bit integers before AVX-512: the exponent is put in the low bits of
  // 2^52 instead.
  const D e = bits_as<D>((k >> 52) | kTwoTo52) - (4503599627370496.0 + 1023);
  return {bits_as<D>((k & kMantissa) + kRootHalf), e};
}

// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)]: 2·atanh(f / (2 + f)), relative error 2^-52.
template <class D>
EC_INLINE D log1p_of_fraction(D f) {
  constexpr double q[] = {0.66666666666587349, 0.40000000052216722, 0.28571417137069138,
                          0.22223371298243105, 0.18123651028756688, 0.16819764394687986};
  const D z = f / (f + 2.0);
  const D square = z * z;
  return fma(polynomial(square, q) * square, z, z + z);
}

template <class D>
EC_INLINE D log2_double(D x) {
  const Decomposed<D> p = decompose(x);
  return p.e + log1p_of_fraction(p.m - 1.0) * (1 / kLn2);
}

// log(1 + x), x > -1. Where 1 + x needs no scaling x itself is the fraction, so nothing is lost for
// small x.
template <class D>
EC_INLINE D log1p_double(D x) {
  const Decomposed<D> p = decompose(x + 1.0);
  const D f = select(p.e == 0.0, x, p.m - 1.0);
  return p.e * kLn2 + log1p_of_fraction(f);
}

// The value of a logarithm whose argument is x (or 1 + something, with x that sum's sign).
template <class V>
EC_INLINE V with_log_specials(V x, V result) {
  const V outside = select(x == 0.0f, broadcast<V>(-kInfinityF),
                           select(x < 0.0f, broadcast<V>(kNanF), x));  // x: +inf or NaN
  return select((x > 0.0f) & (x < kInfinityF), result, outside);
}

template <class V>
EC_INLINE V vlog(V x) {
  return with_log_specials(x, in_double(x, [](auto d) {
                             const auto p = decompose(d);
                             return p.e * kLn2 + log1p_of_fraction(p.m - 1.0);
                           }));
}

template <class V>
EC_INLINE V vlog2(V x) {
  return with_log_specials(x, in_double(x, [](auto d) { return log2_double(d); }));
}

template <class V>
EC_INLINE V vlog10(V x) {
  return with_log_specials(
      x, in_double(x, [](auto d) { return log2_double(d) * 0.30102999566398119521; }));
}

template <class V>
EC_INLINE V vlog1p(V x) {
  const V r = with_log_specials(x + 1.0f, in_double(x, [](auto d) { return log1p_double(d); }));
  // 1 + x rounds to 0 for no x but -1, to infinity for none but infinity. -0 and tiny x: x.
  return select(x == 0.0f, x, r);
}

// 2^(y·log2|x|), the exponent right to 2^-44, with C99's special cases.
template <class V>
EC_INLINE V vpow(V x, V y) {
  const V a = abs(x);
  const V r = in_double(a, y, [](auto base, auto power) {
    using D = decltype(base);
    D l = log2_double(base);
    l = select(base == 0.0, broadcast<D>(-__builtin_inf()), l);
    l = select(base < __builtin_inf(), l, base);  // infinity and NaN
    return exp2_double(clamp(power * l, -300.0, 300.0));
  });
  // Parity of y: from 2^24 on every float is even.
  const V whole = map(y, [](float v) { return __builtin_truncf(v); });
  const V halves = y * 0.5f;
  const IntOf<V> integral = whole == y;
  const IntOf<V> odd =
      integral & (map(halves, [](float v) { return __builtin_truncf(v); }) != halves);
  V result = select(odd & (bits(x) < 0), -r, r);
  const IntOf<V> no_value = (x < 0.0f) & (a < kInfinityF) & ~integral & (y == y);
  result = select(no_value, broadcast<V>(kNanF), result);
  // 1 even where the other operand is NaN; (-1)^±inf is 1 too.
  const IntOf<V> one = (x == 1.0f) | (y == 0.0f) | ((x == -1.0f) & (abs(y) == kInfinityF));
  return select(one, broadcast<V>(1.0f), result);
}

// asinh|x| = log1p(a + a² / (1 + sqrt(1 + a²))), a = |x|.
template <class V>
EC_INLINE V vasinh(V x) {
  const V r = in_double(abs(x), [](auto a) {
    const auto square = a * a;
    return log1p_double(a + square / (sqrt(square + 1.0) + 1.0));
  });
  return select(abs(x) < kInfinityF, copysign(r, x), x);
}

// acosh x = log1p(t + sqrt(2t + t²)), t = x - 1.
template <class V>
EC_INLINE V vacosh(V x) {
  const V r = in_double(x, [](auto d) {
    const auto t = d - 1.0;
    return log1p_double(t + sqrt(t * (t + 2.0)));
  });
  return select(x < 1.0f, broadcast<V>(kNanF), select(x < kInfinityF, r, x));
}

// atanh|x| = log1p(2a / (1 - a)) / 2, a = |x|.
template <class V>
EC_INLINE V vatanh(V x) {
  const V a = abs(x);
  V r = in_double(a, [](auto d) { return 0.5 * log1p_double((d + d) / (1.0 - d)); });
  r = select(a < 1.0f, r,
             select(a == 1.0f, broadcast<V>(kInfinityF), broadcast<V>(kNanF)));  // NaN: NaN
  return copysign(r, x);
}

}  // namespace ec
