// The vector functions that code generated through torch's at::vec headers calls by Sleef's names
// and calling conventions: Sleef_<function><f|d><lanes>[_<accuracy>], vectors by value. Exported
// with the runtime's prefix, for every width that the target has registers for.
//
// float: vecmath.h, within 2 ulp whatever accuracy the name promises (u05, u10, u15, u35).
// double: the C library lane by lane; no model worth the name spends its time there.
#include <cmath>
#include <limits>

#include "base/export.h"
#include "math/vecmath.h"

namespace ec {
namespace {

// What Sleef's sincos returns (Sleef___m256_2 and its kin).
template <class V>
struct Pair {
  V x, y;
};

template <class V>
EC_INLINE Pair<V> sincos(V a) {
  return {vsin(a), vcos(a)};
}
template <class V>
EC_INLINE Pair<V> sincos_double(V a) {
  return {map(a, [](double v) { return std::sin(v); }),
          map(a, [](double v) { return std::cos(v); })};
}

double lgamma_double(double v) {
  int sign;
  return ::lgamma_r(v, &sign);
}

// Not std::hypot: its version in glibc 2.35 would keep the library from loading on older systems.
// A long double has the range for the squares and the precision for one rounding.
double hypot_double(double x, double y) {
  if (std::isinf(x) || std::isinf(y)) return std::numeric_limits<double>::infinity();
  const auto a = static_cast<long double>(x);
  const auto b = static_cast<long double>(y);
  return static_cast<double>(std::sqrt(a * a + b * b));
}

// Not exp10, whose version in glibc 2.39 older systems lack.
double exp10_double(double v) { return std::pow(10.0, v); }

}  // namespace
}  // namespace ec

// One function for each width: DEFINE(float type, lanes) is a definition for one width.
#if EC_VECTOR_BYTES >= 64
#define EC_FOR_WIDTHS(DEFINE, T, letter, lanes16, lanes32, lanes64, ...) \
  DEFINE(T, letter, lanes16, __VA_ARGS__)                                \
  DEFINE(T, letter, lanes32, __VA_ARGS__)                                \
  DEFINE(T, letter, lanes64, __VA_ARGS__)
#elif EC_VECTOR_BYTES >= 32
#define EC_FOR_WIDTHS(DEFINE, T, letter, lanes16, lanes32, lanes64, ...) \
  DEFINE(T, letter, lanes16, __VA_ARGS__)                                \
  DEFINE(T, letter, lanes32, __VA_ARGS__)
#else
#define EC_FOR_WIDTHS(DEFINE, T, letter, lanes16, lanes32, lanes64, ...) \
  DEFINE(T, letter, lanes16, __VA_ARGS__)
#endif

// `accuracy` is empty or _u10 and so on; `expression` is in terms of the arguments x (and y).
#define EC_DEFINE_UNARY(T, letter, lanes, name, accuracy, expression)                            \
  EC_API ec::Vector<T, lanes> ec_Sleef_##name##letter##lanes##accuracy(ec::Vector<T, lanes> x) { \
    return expression;                                                                           \
  }
#define EC_DEFINE_BINARY(T, letter, lanes, name, accuracy, expression)                           \
  EC_API ec::Vector<T, lanes> ec_Sleef_##name##letter##lanes##accuracy(ec::Vector<T, lanes> x,   \
                                                                       ec::Vector<T, lanes> y) { \
    return expression;                                                                           \
  }
#define EC_DEFINE_PAIR(T, letter, lanes, name, accuracy, expression)              \
  EC_API ec::Pair<ec::Vector<T, lanes>> ec_Sleef_##name##letter##lanes##accuracy( \
      ec::Vector<T, lanes> x) {                                                   \
    return expression;                                                            \
  }

#define EC_FLOATS(DEFINE, ...) EC_FOR_WIDTHS(DEFINE, float, f, 4, 8, 16, __VA_ARGS__)
#define EC_DOUBLES(DEFINE, ...) EC_FOR_WIDTHS(DEFINE, double, d, 2, 4, 8, __VA_ARGS__)

// name, accuracy, the float function over vectors, the double function over scalars.
#define EC_UNARY(name, accuracy, single, scalar)        \
  EC_FLOATS(EC_DEFINE_UNARY, name, accuracy, single(x)) \
  EC_DOUBLES(EC_DEFINE_UNARY, name, accuracy, ec::map(x, [](double v) { return scalar(v); }))
#define EC_BINARY(name, accuracy, single, scalar)           \
  EC_FLOATS(EC_DEFINE_BINARY, name, accuracy, single(x, y)) \
  EC_DOUBLES(EC_DEFINE_BINARY, name, accuracy,              \
             ec::map(x, y, [](double v, double w) { return scalar(v, w); }))

EC_UNARY(exp, _u10, ec::vexp, std::exp)
EC_UNARY(exp2, _u10, ec::vexp2, std::exp2)
EC_UNARY(exp10, _u10, ec::vexp10, ec::exp10_double)
EC_UNARY(expm1, _u10, ec::vexpm1, std::expm1)
EC_UNARY(log, _u10, ec::vlog, std::log)
EC_UNARY(log2, _u10, ec::vlog2, std::log2)
EC_UNARY(log10, _u10, ec::vlog10, std::log10)
EC_UNARY(log1p, _u10, ec::vlog1p, std::log1p)
EC_UNARY(sin, _u10, ec::vsin, std::sin)
EC_UNARY(cos, _u10, ec::vcos, std::cos)
EC_UNARY(tan, _u10, ec::vtan, std::tan)
EC_UNARY(sin, _u35, ec::vsin, std::sin)
EC_UNARY(cos, _u35, ec::vcos, std::cos)
EC_UNARY(tan, _u35, ec::vtan, std::tan)
EC_UNARY(asin, _u10, ec::vasin, std::asin)
EC_UNARY(acos, _u10, ec::vacos, std::acos)
EC_UNARY(atan, _u10, ec::vatan, std::atan)
EC_UNARY(sinh, _u10, ec::vsinh, std::sinh)
EC_UNARY(cosh, _u10, ec::vcosh, std::cosh)
EC_UNARY(tanh, _u10, ec::vtanh, std::tanh)
EC_UNARY(asinh, _u10, ec::vasinh, std::asinh)
EC_UNARY(acosh, _u10, ec::vacosh, std::acosh)
EC_UNARY(atanh, _u10, ec::vatanh, std::atanh)
EC_UNARY(erf, _u10, ec::verf, std::erf)
EC_UNARY(erfc, _u15, ec::verfc, std::erfc)
EC_UNARY(lgamma, _u10, ec::vlgamma, ec::lgamma_double)
EC_UNARY(tgamma, _u10, ec::vtgamma, std::tgamma)

EC_BINARY(pow, _u10, ec::vpow, std::pow)
EC_BINARY(atan2, _u10, ec::vatan2, std::atan2)
EC_BINARY(hypot, _u05, ec::vhypot, ec::hypot_double)
EC_BINARY(fmod, , ec::vfmod, std::fmod)
EC_BINARY(nextafter, , ec::vnextafter, std::nextafter)
EC_BINARY(copysign, , ec::copysign, std::copysign)

EC_FLOATS(EC_DEFINE_PAIR, sincos, _u10, ec::sincos(x))
EC_FLOATS(EC_DEFINE_PAIR, sincos, _u35, ec::sincos(x))
EC_DOUBLES(EC_DEFINE_PAIR, sincos, _u10, ec::sincos_double(x))

// What kernels call by libm's names where a level has no vectors for it.
EC_API double ec_fmod(double x, double y) { return std::fmod(x, y); }
EC_API float ec_fmodf(float x, float y) { return std::fmod(x, y); }
EC_API double ec_hypot(double x, double y) { return ec::hypot_double(x, y); }
EC_API float ec_hypotf(float x, float y) {
  if (std::isinf(x) || std::isinf(y)) return std::numeric_limits<float>::infinity();
  const auto a = static_cast<double>(x);
  const auto b = static_cast<double>(y);
  return static_cast<float>(std::sqrt(a * a + b * b));
}
