// Vector mathematics for kernels and for the Sleef entry points (vecmath_exports.cpp): inline
// templates over the vector type, v<name>(x), all within 2 ulp over the whole of float32
// (subnormals, infinities, NaN and signed zeros included; tests/native/kernels/test_vecmath.py).
//
//   vecmath_exp.h   vexp vexp2 vexp2_normal vexp10 vexpm1 vsigmoid vtanh vsinh vcosh
//   vecmath_erf.h   verf verfc vgelu_erf vgelu_tanh vsilu
//   vecmath_log.h   vlog vlog2 vlog10 vlog1p vpow vasinh vacosh vatanh
//   vecmath_trig.h  vsin vcos vtan vatan2 vatan vasin vacos
//   here            vhypot vrsqrt vfmod (exact); vnextafter vlgamma vtgamma by lanes
#pragma once

#include <cmath>

#include "math/vecmath_erf.h"
#include "math/vecmath_exp.h"
#include "math/vecmath_log.h"
#include "math/vecmath_trig.h"

#ifdef __aarch64__
// glibc 2.38 has newer versions of these, which older systems lack.
__asm__(".symver fmod,fmod@GLIBC_2.17");
__asm__(".symver fmodf,fmodf@GLIBC_2.17");
#endif

namespace ec {

// sqrt(x² + y²); the squares of floats are exact in double and can't overflow there.
template <class V>
EC_INLINE V vhypot(V x, V y) {
  const V r = in_double(x, y, [](auto a, auto b) { return sqrt(a * a + b * b); });
  const IntOf<V> infinite = (abs(x) == kInfinityF) | (abs(y) == kInfinityF);
  return select(infinite, broadcast<V>(kInfinityF), r);  // hypot(inf, NaN) is inf
}

template <class V>
EC_INLINE V vrsqrt(V x) {
  return 1.0f / sqrt(x);
}

// Exact, as the C library's, which computes lane by lane what has larger quotients: up to 2^28 the
// product of the quotient and a float has no more than a double's 53 bits, and the difference no
// more than a float's 24.
template <class V>
EC_INLINE V vfmod(V x, V y) {
  constexpr float kLargest = 268435456.0f;  // 2^28
  const V size = abs(x), step = abs(y);
  if (!all((size < step * kLargest) & (step < kInfinityF))) [[unlikely]] {
    return map(x, y, [](float a, float b) { return std::fmod(a, b); });
  }
  return copysign(in_double(size, step,
                            [](auto a, auto b) {
                              const auto quotient =
                                  (a / b + kRoundD) - kRoundD;  // or the next larger
                              const auto rest = a - quotient * b;
                              return rest < 0.0 ? rest + b : rest;
                            }),
                  x);
}
// Rarely used: the C library, lane by lane.
template <class V>
EC_INLINE V vnextafter(V x, V y) {
  return map(x, y, [](float a, float b) { return std::nextafter(a, b); });
}
// In double: the float versions of the C library are off by several ulp. lgamma_r, because lgamma
// writes a global.
template <class V>
EC_INLINE V vlgamma(V x) {
  return map(x, [](float a) {
    int sign;
    return static_cast<float>(::lgamma_r(static_cast<double>(a), &sign));
  });
}
template <class V>
EC_INLINE V vtgamma(V x) {
  return map(x, [](float a) { return static_cast<float>(std::tgamma(static_cast<double>(a))); });
}

}  // namespace ec
