// What torch's NEON headers call by Sleef's names: the sleef.h that comes with torch on x86-64
// declares no NEON functions. The runtime defines all of these (vecmath_exports.cpp).
#pragma once

#include <arm_neon.h>

#define EC_SLEEF_UNARY(name, accuracy)                                                   \
  __attribute__((const)) float32x4_t Sleef_##name##f4##accuracy(float32x4_t x) noexcept; \
  __attribute__((const)) float64x2_t Sleef_##name##d2##accuracy(float64x2_t x) noexcept;
#define EC_SLEEF_BINARY(name, accuracy)                                                  \
  __attribute__((const)) float32x4_t Sleef_##name##f4##accuracy(float32x4_t x,           \
                                                                float32x4_t y) noexcept; \
  __attribute__((const)) float64x2_t Sleef_##name##d2##accuracy(float64x2_t x,           \
                                                                float64x2_t y) noexcept;

extern "C" {

EC_SLEEF_UNARY(acos, _u10)
EC_SLEEF_UNARY(acosh, _u10)
EC_SLEEF_UNARY(asin, _u10)
EC_SLEEF_UNARY(asinh, _u10)
EC_SLEEF_UNARY(atan, _u10)
EC_SLEEF_UNARY(atanh, _u10)
EC_SLEEF_UNARY(cos, _u10)
EC_SLEEF_UNARY(cosh, _u10)
EC_SLEEF_UNARY(erf, _u10)
EC_SLEEF_UNARY(erfc, _u15)
EC_SLEEF_UNARY(exp, _u10)
EC_SLEEF_UNARY(exp2, _u10)
EC_SLEEF_UNARY(expm1, _u10)
EC_SLEEF_UNARY(lgamma, _u10)
EC_SLEEF_UNARY(log, _u10)
EC_SLEEF_UNARY(log10, _u10)
EC_SLEEF_UNARY(log1p, _u10)
EC_SLEEF_UNARY(log2, _u10)
EC_SLEEF_UNARY(sin, _u10)
EC_SLEEF_UNARY(sinh, _u10)
EC_SLEEF_UNARY(tan, _u10)
EC_SLEEF_UNARY(tanh, _u10)

EC_SLEEF_BINARY(atan2, _u10)
EC_SLEEF_BINARY(copysign, )
EC_SLEEF_BINARY(fmod, )
EC_SLEEF_BINARY(hypot, _u05)
EC_SLEEF_BINARY(nextafter, )
EC_SLEEF_BINARY(pow, _u10)

}  // extern "C"

#undef EC_SLEEF_UNARY
#undef EC_SLEEF_BINARY
