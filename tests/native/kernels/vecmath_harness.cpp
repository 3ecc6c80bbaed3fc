// Array entry points around the vector functions, for vecmath_check.py. The Sleef entry points are
// called as generated code calls them: by their names, with the intrinsics' own vector types where
// there are any. Each pass over an array ends with a partial vector.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/export.h"
#include "math/vecmath.h"

// The attribute that templates ignore is the intrinsics types' may_alias.
#pragma GCC diagnostic ignored "-Wignored-attributes"

#if defined(__x86_64__)
#include <immintrin.h>
using F4 = __m128;
using D2 = __m128d;
#if EC_VECTOR_BYTES >= 32
using F8 = __m256;
using D4 = __m256d;
#endif
#if EC_VECTOR_BYTES >= 64
using F16 = __m512;
using D8 = __m512d;
#endif
#else
using F4 = ec::Vector<float, 4>;
using D2 = ec::Vector<double, 2>;
#endif

namespace {

template <class V>
struct Pair {
  V x, y;
};

// Result number `part` of f over the arrays; V may be an intrinsics type. T: float or double.
template <class V, class T, class F>
void over(const F& f, const T* a, const T* b, T* out, int64_t n) {
  constexpr int lanes = sizeof(V) / sizeof(T);
  using G = ec::Vector<T, lanes>;
  for (int64_t i = 0; i < n; i += lanes) {
    const G x = ec::load_partial<G>(a + i, n - i, T(1));
    const G y = b ? ec::load_partial<G>(b + i, n - i, T(1)) : x;
    ec::store_partial(out + i, (G)f((V)x, (V)y), n - i);
  }
}

}  // namespace

#if EC_VECTOR_BYTES >= 64
#define EC_WIDTHS(WITH, ...) \
  WITH(F4, D2, 4, 2, __VA_ARGS__) WITH(F8, D4, 8, 4, __VA_ARGS__) WITH(F16, D8, 16, 8, __VA_ARGS__)
#elif EC_VECTOR_BYTES >= 32
#define EC_WIDTHS(WITH, ...) WITH(F4, D2, 4, 2, __VA_ARGS__) WITH(F8, D4, 8, 4, __VA_ARGS__)
#else
#define EC_WIDTHS(WITH, ...) WITH(F4, D2, 4, 2, __VA_ARGS__)
#endif

#define EC_DECLARE_UNARY(F, D, nf, nd, name, accuracy) \
  extern "C" F ec_Sleef_##name##f##nf##accuracy(F);    \
  extern "C" D ec_Sleef_##name##d##nd##accuracy(D);
#define EC_DECLARE_BINARY(F, D, nf, nd, name, accuracy) \
  extern "C" F ec_Sleef_##name##f##nf##accuracy(F, F);  \
  extern "C" D ec_Sleef_##name##d##nd##accuracy(D, D);
#define EC_DECLARE_PAIR(F, D, nf, nd, name, accuracy)     \
  extern "C" Pair<F> ec_Sleef_##name##f##nf##accuracy(F); \
  extern "C" Pair<D> ec_Sleef_##name##d##nd##accuracy(D);

// clang-format off
#define EC_UNARY_NAMES(X)                                                               \
  X(exp, _u10) X(exp2, _u10) X(exp10, _u10) X(expm1, _u10) X(log, _u10) X(log2, _u10)   \
  X(log10, _u10) X(log1p, _u10) X(sin, _u10) X(cos, _u10) X(tan, _u10) X(asin, _u10)    \
  X(acos, _u10) X(atan, _u10) X(sinh, _u10) X(cosh, _u10) X(tanh, _u10) X(asinh, _u10)  \
  X(acosh, _u10) X(atanh, _u10) X(erf, _u10) X(erfc, _u15) X(lgamma, _u10) X(tgamma, _u10)
#define EC_BINARY_NAMES(X)                                                              \
  X(pow, _u10) X(atan2, _u10) X(hypot, _u05) X(fmod, ) X(nextafter, ) X(copysign, )
// clang-format on

#define EC_DECLARE_1(name, accuracy) EC_WIDTHS(EC_DECLARE_UNARY, name, accuracy)
#define EC_DECLARE_2(name, accuracy) EC_WIDTHS(EC_DECLARE_BINARY, name, accuracy)
EC_UNARY_NAMES(EC_DECLARE_1)
EC_BINARY_NAMES(EC_DECLARE_2)
EC_WIDTHS(EC_DECLARE_PAIR, sincos, _u10)

// Runs the float or double function `name` on vectors of `lanes`; "sincos.sin" and "sincos.cos"
// are the parts of the pair. Returns 0, or -1 when this build has no such function or width.
#define EC_RUN_UNARY(F, D, nf, nd, fn, accuracy)                                         \
  if (std::strcmp(name, #fn) == 0) {                                                     \
    if constexpr (std::is_same_v<T, float>) {                                            \
      if (lanes == nf) {                                                                 \
        over<F>([](F x, F) { return ec_Sleef_##fn##f##nf##accuracy(x); }, a, b, out, n); \
        return 0;                                                                        \
      }                                                                                  \
    } else if (lanes == nd) {                                                            \
      over<D>([](D x, D) { return ec_Sleef_##fn##d##nd##accuracy(x); }, a, b, out, n);   \
      return 0;                                                                          \
    }                                                                                    \
  }
#define EC_RUN_BINARY(F, D, nf, nd, fn, accuracy)                                             \
  if (std::strcmp(name, #fn) == 0) {                                                          \
    if constexpr (std::is_same_v<T, float>) {                                                 \
      if (lanes == nf) {                                                                      \
        over<F>([](F x, F y) { return ec_Sleef_##fn##f##nf##accuracy(x, y); }, a, b, out, n); \
        return 0;                                                                             \
      }                                                                                       \
    } else if (lanes == nd) {                                                                 \
      over<D>([](D x, D y) { return ec_Sleef_##fn##d##nd##accuracy(x, y); }, a, b, out, n);   \
      return 0;                                                                               \
    }                                                                                         \
  }
#define EC_RUN_PAIR(F, D, nf, nd, part, member)                                             \
  if (std::strcmp(name, part) == 0) {                                                       \
    if constexpr (std::is_same_v<T, float>) {                                               \
      if (lanes == nf) {                                                                    \
        over<F>([](F x, F) { return ec_Sleef_sincosf##nf##_u10(x).member; }, a, b, out, n); \
        return 0;                                                                           \
      }                                                                                     \
    } else if (lanes == nd) {                                                               \
      over<D>([](D x, D) { return ec_Sleef_sincosd##nd##_u10(x).member; }, a, b, out, n);   \
      return 0;                                                                             \
    }                                                                                       \
  }
// Inline functions of vecmath.h that have no Sleef name.
#define EC_RUN_INLINE(F, D, nf, nd, fn, call)                \
  if (std::strcmp(name, #fn) == 0 && lanes == nf) {          \
    if constexpr (std::is_same_v<T, float>) {                \
      using V = ec::Vector<float, nf>;                       \
      over<V>([](V x, V) { return call(x); }, a, b, out, n); \
      return 0;                                              \
    }                                                        \
  }

template <class T>
static int run(const char* name, int lanes, const T* a, const T* b, T* out, int64_t n) {
#define EC_RUN_1(fn, accuracy) EC_WIDTHS(EC_RUN_UNARY, fn, accuracy)
#define EC_RUN_2(fn, accuracy) EC_WIDTHS(EC_RUN_BINARY, fn, accuracy)
  EC_UNARY_NAMES(EC_RUN_1)
  EC_BINARY_NAMES(EC_RUN_2)
  EC_WIDTHS(EC_RUN_PAIR, "sincos.sin", x)
  EC_WIDTHS(EC_RUN_PAIR, "sincos.cos", y)
  EC_WIDTHS(EC_RUN_INLINE, exp2_normal, ec::vexp2_normal)
  EC_WIDTHS(EC_RUN_INLINE, sigmoid, ec::vsigmoid)
  EC_WIDTHS(EC_RUN_INLINE, rsqrt, ec::vrsqrt)
  EC_WIDTHS(EC_RUN_INLINE, sqrt, ec::sqrt)
  EC_WIDTHS(EC_RUN_INLINE, gelu_erf, ec::vgelu_erf)
  EC_WIDTHS(EC_RUN_INLINE, gelu_tanh, ec::vgelu_tanh)
  EC_WIDTHS(EC_RUN_INLINE, gelu_erf_coarse, ec::vgelu_erf_coarse)
  EC_WIDTHS(EC_RUN_INLINE, gelu_tanh_coarse, ec::vgelu_tanh_coarse)
  EC_WIDTHS(EC_RUN_INLINE, silu, ec::vsilu)
  return -1;
}

EC_API int harness_vector_bytes() { return EC_VECTOR_BYTES; }
EC_API int harness_run_float(const char* name, int lanes, const float* a, const float* b,
                             float* out, int64_t n) {
  return run(name, lanes, a, b, out, n);
}
EC_API int harness_run_double(const char* name, int lanes, const double* a, const double* b,
                              double* out, int64_t n) {
  return run(name, lanes, a, b, out, n);
}

// ---- simd.h -------------------------------------------------------------------------------------

// What each of these gives is checked against numpy. `kind` picks the operation on one vector.
template <class V>
static void lane_operation(int kind, const float* a, const float* b, float* out, int64_t n) {
  using I = ec::IntOf<V>;
  const V x = ec::load<V>(a), y = ec::load<V>(b);
  switch (kind) {
    case 0:
      return ec::store_partial(out, ec::load_partial<V>(a, n, -7.0f), n);
    case 1:
      return ec::store(out, ec::load_partial<V>(a, n, -7.0f));
    case 2:
      return ec::store(out, ec::broadcast<V>(ec::reduce_add(x)));
    case 3:
      return ec::store(out, ec::broadcast<V>(ec::reduce_max(x)));
    case 4:
      return ec::store(out, ec::min(x, y));
    case 5:
      return ec::store(out, ec::max(x, y));
    case 6:
      return ec::store(out, ec::copysign(x, y));
    case 7:
      return ec::store(out, ec::convert<V>(ec::convert<I>(x)));
    case 8:
      return ec::store(out, ec::broadcast<V>(ec::any(x > y) ? 1.0f : 0.0f));
    case 9:
      return ec::store(out, ec::broadcast<V>(ec::all(x > y) ? 1.0f : 0.0f));
    case 10:
      return ec::store(out, ec::join(ec::split(x).high, ec::split(x).low));
    case 11:
      return ec::store(out, ec::select(x > y, x, y));
    case 12:
      return ec::store(out, ec::convert<V>(ec::iota<I>()));
    case 13:
      return ec::store(out, ec::fma(x, y, x));
    case 14:
      return ec::store(out, ec::abs(x));
    default:
      return;
  }
}
EC_API int harness_lanes(int lanes, int kind, const float* a, const float* b, float* out,
                         int64_t n) {
  if (lanes == 4) lane_operation<ec::Vector<float, 4>>(kind, a, b, out, n);
#if EC_VECTOR_BYTES >= 32
  if (lanes == 8) lane_operation<ec::Vector<float, 8>>(kind, a, b, out, n);
#endif
#if EC_VECTOR_BYTES >= 64
  if (lanes == 16) lane_operation<ec::Vector<float, 16>>(kind, a, b, out, n);
#endif
  return lanes * 4 <= EC_VECTOR_BYTES ? 0 : -1;
}
EC_API float harness_broadcast(float x) { return ec::broadcast(x)[ec::kFloatLanes - 1]; }

// ---- Reference ----------------------------------------------------------------------------------

// The functions in long double (64 bits of mantissa or more), rounded to double.
EC_API int harness_reference(const char* name, const float* a, const float* b, double* out,
                             int64_t n) {
  using L = long double;
  const auto fill = [&](auto f) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<double>(f(L(a[i]), L(b ? b[i] : 0)));
    return 0;
  };
#define EC_REFERENCE(fn, expression) \
  if (std::strcmp(name, fn) == 0)    \
    return fill([](L x, L y) -> L {  \
      (void)y;                       \
      return expression;             \
    });
  EC_REFERENCE("exp", expl(x))
  EC_REFERENCE("exp2_normal", x <= -126.5f ? 0 : exp2l(x))
  EC_REFERENCE("exp2", exp2l(x))
  EC_REFERENCE("exp10", powl(10, x))
  EC_REFERENCE("expm1", expm1l(x))
  EC_REFERENCE("log", logl(x))
  EC_REFERENCE("log2", log2l(x))
  EC_REFERENCE("log10", log10l(x))
  EC_REFERENCE("log1p", log1pl(x))
  EC_REFERENCE("sin", sinl(x))
  EC_REFERENCE("cos", cosl(x))
  EC_REFERENCE("sincos.sin", sinl(x))
  EC_REFERENCE("sincos.cos", cosl(x))
  EC_REFERENCE("tan", tanl(x))
  EC_REFERENCE("asin", asinl(x))
  EC_REFERENCE("acos", acosl(x))
  EC_REFERENCE("atan", atanl(x))
  EC_REFERENCE("sinh", sinhl(x))
  EC_REFERENCE("cosh", coshl(x))
  EC_REFERENCE("tanh", tanhl(x))
  EC_REFERENCE("asinh", asinhl(x))
  EC_REFERENCE("acosh", acoshl(x))
  EC_REFERENCE("atanh", atanhl(x))
  EC_REFERENCE("erf", erfl(x))
  EC_REFERENCE("erfc", erfcl(x))
  EC_REFERENCE("lgamma", lgammal(x))
  EC_REFERENCE("tgamma", tgammal(x))
  EC_REFERENCE("sigmoid", 1 / (1 + expl(-x)))
  EC_REFERENCE("rsqrt", 1 / sqrtl(x))
  EC_REFERENCE("sqrt", sqrtl(x))
  EC_REFERENCE("gelu_erf", x / 2 * erfcl(-x * 0.70710678118654752440084436210485L))
  EC_REFERENCE("gelu_tanh", x / (1 + expl(-2 * 0.79788456080286535587989211986876L *
                                          (x + 0.044715L * x * x * x))))
  EC_REFERENCE("silu", x / (1 + expl(-x)))
  EC_REFERENCE("pow", powl(x, y))
  EC_REFERENCE("atan2", atan2l(x, y))
  EC_REFERENCE("hypot", hypotl(x, y))
  EC_REFERENCE("fmod", fmodl(x, y))
  EC_REFERENCE("nextafter", nextafterf(float(x), float(y)))
  EC_REFERENCE("copysign", copysignl(x, y))
  return -1;
}
