// Trigonometric functions and their inverses over double lanes, rounded to float once.
// Coefficients: minimax fits by scripts/fit_vecmath.py.
#pragma once

#include <cmath>

#include "math/vecmath_exp.h"

namespace ec {

constexpr double kPi = 3.14159265358979323846;

// Up to here x - n·π/2 is done in double lanes; beyond (and for infinity and NaN) the lanes go to
// the C library one by one, which has a Payne-Hanek reduction: such arguments are next to unheard
// of in a model.
constexpr float kLargestReduced = 1048576.0f;

template <class V>
EC_INLINE bool all_reducible(V x) {
  return all(abs(x) <= kLargestReduced);  // false for NaN
}

// sin and cos of x - n·π/2, and n in the low bits of `quadrant`.
template <class D>
struct Reduced {
  D sine, cosine;
  IntOf<D> quadrant;
};
template <class D>
EC_INLINE Reduced<D> reduce_quadrant(D x) {
  // π/2 in three pieces; the first two have 33 bits, n at most 20, so that their products and the
  // first difference are exact and what is left of x, never below 2^-31 or so for a float, has an
  // error of 2^-66.
  constexpr double kFirst = 0x1.921fb544p0, kSecond = 0x1.0b4611a6p-34;
  constexpr double kThird = 0x1.3198a2e037073p-69;
  constexpr double kRound = 6755399441055744.0;  // 1.5·2^52
  const D z = x * (2 / kPi) + kRound;
  const D n = z - kRound;
  const D r = ((x - n * kFirst) - n * kSecond) - n * kThird;
  const D square = r * r;
  constexpr double q_sine[] = {-0.16666666666630317, 0.0083333333250713848, -0.00019841263725083291,
                               2.7555338890097567e-06, -2.4760398192700713e-08};
  constexpr double q_cosine[] = {-0.49999999999999412,    0.041666666666487669,
                                 -0.001388888887057694,   2.4801578644127824e-05,
                                 -2.7555241575127278e-07, 2.0630587157649202e-09};
  // r·(1 + …), not r + r·…, keeps the sign of r = -0.
  return {r * fma(polynomial(square, q_sine), square, broadcast<D>(1.0)),
          fma(polynomial(square, q_cosine), square, broadcast<D>(1.0)), bits(z)};
}

// sin(x + turns·π/2) from the parts above.
template <class D>
EC_INLINE D sine_of(const Reduced<D>& p, int64_t turns) {
  const IntOf<D> q = p.quadrant + turns;
  const D v = select((q & 1) != 0, p.cosine, p.sine);
  return bits_as<D>(bits(v) ^ ((q & 2) << 62));
}

template <class V>
EC_INLINE V vsin(V x) {
  if (__builtin_expect(!all_reducible(x), 0)) {
    return map(x, [](float v) { return static_cast<float>(std::sin(static_cast<double>(v))); });
  }
  return in_double(x, [](auto d) { return sine_of(reduce_quadrant(d), 0); });
}

template <class V>
EC_INLINE V vcos(V x) {
  if (__builtin_expect(!all_reducible(x), 0)) {
    return map(x, [](float v) { return static_cast<float>(std::cos(static_cast<double>(v))); });
  }
  return in_double(x, [](auto d) { return sine_of(reduce_quadrant(d), 1); });
}

template <class V>
EC_INLINE V vtan(V x) {
  if (__builtin_expect(!all_reducible(x), 0)) {
    return map(x, [](float v) { return static_cast<float>(std::tan(static_cast<double>(v))); });
  }
  return in_double(x, [](auto d) {
    const auto p = reduce_quadrant(d);
    const auto odd = (p.quadrant & 1) != 0;
    return select(odd, -p.cosine, p.sine) / select(odd, p.sine, p.cosine);
  });
}

// Angle of the point (x, y); signed zeros and infinities as C99 has it. One division: with
// t = min/max in [0, 1], atan t = π/4 + atan((t - 1) / (t + 1)) where t > tan(π/8).
template <class D>
EC_INLINE D atan2_double(D y, D x) {
  const D ay = abs(y), ax = abs(x);
  D low = min(ay, ax), high = max(ay, ax);
  const IntOf<D> same = low == __builtin_inf();
  low = select(same, broadcast<D>(1.0), low);
  high = select(same | (high == 0.0), broadcast<D>(1.0), high);
  const IntOf<D> wide = low > high * 0.41421356237309504880;
  const D z = select(wide, low - high, low) / select(wide, low + high, high);
  const D square = z * z;
  constexpr double q[] = {-0.33333333331663373,  0.19999999680584668,   -0.14285693342300188,
                          0.11110443928072761,   -0.090790603646278403, 0.075679987118345601,
                          -0.058890929029524856, 0.030865801890256672};
  D angle = fma(polynomial(square, q) * square, z, z);
  angle = select(wide, angle + kPi / 4, angle);
  angle = select(ay > ax, kPi / 2 - angle, angle);
  angle = select(bits(x) < 0, kPi - angle, angle);
  angle = copysign(angle, y);
  return select((x == x) & (y == y), angle, x + y);
}

template <class V>
EC_INLINE V vatan2(V y, V x) {
  return in_double(y, x, [](auto a, auto b) { return atan2_double(a, b); });
}

template <class V>
EC_INLINE V vatan(V x) {
  return in_double(x, [](auto d) { return atan2_double(d, broadcast<decltype(d)>(1.0)); });
}

// (1 - x)(1 + x) is exact enough in double lanes next to ±1; NaN outside [-1, 1].
template <class V>
EC_INLINE V vasin(V x) {
  return in_double(x, [](auto d) { return atan2_double(d, sqrt((1.0 - d) * (1.0 + d))); });
}

template <class V>
EC_INLINE V vacos(V x) {
  return in_double(x, [](auto d) { return atan2_double(sqrt((1.0 - d) * (1.0 + d)), d); });
}

}  // namespace ec
