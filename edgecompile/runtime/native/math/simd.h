// Short vectors over GCC's vector extensions, written once for every instruction set.
//
// A vector is a plain GCC vector type, `Vector<T, N>`: N elements of T. The arithmetic, comparison
// and bit operators of the language work on it; a comparison gives a vector of integers, 0 or -1 in
// each lane, and `mask ? a : b` selects by lanes. Everything here is a template over the vector
// type, so that one translation unit can use several widths at once (the Sleef entry points of a
// 512-bit build exist for 4, 8 and 16 floats). `vf32`, `vi32` … are the build's natural width.
//
// Compile with -ffp-contract=fast: `fma(a, b, c)` is then one instruction where the hardware has
// it, and a multiplication followed by an addition where it hasn't (x86-64-v2).
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if !defined(EC_VECTOR_BYTES)
#if defined(__AVX512F__)
#define EC_VECTOR_BYTES 64
#elif defined(__AVX__)
#define EC_VECTOR_BYTES 32
#else
#define EC_VECTOR_BYTES 16
#endif
#endif

#define EC_INLINE inline __attribute__((always_inline))

namespace ec {

template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T, int N>
using Vector = typename VectorOf<T, N>::type;

// Element type, number of lanes, and the vectors of the same shape that hold integers.
template <class V>
using Element = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<V&>()[0])>>;
template <class V>
constexpr int kLanes = static_cast<int>(sizeof(V) / sizeof(Element<V>));
template <class V>
using SignedElement = std::conditional_t<
    sizeof(Element<V>) == 8, int64_t,
    std::conditional_t<sizeof(Element<V>) == 4, int32_t,
                       std::conditional_t<sizeof(Element<V>) == 2, int16_t, int8_t>>>;
template <class V>
using IntOf = Vector<SignedElement<V>, kLanes<V>>;
template <class V>
using UintOf = Vector<std::make_unsigned_t<SignedElement<V>>, kLanes<V>>;
template <class V>
using Half = Vector<Element<V>, kLanes<V> / 2>;

constexpr int kVectorBytes = EC_VECTOR_BYTES;
constexpr int kFloatLanes = kVectorBytes / 4;
constexpr int kDoubleLanes = kVectorBytes / 8;
using vf32 = Vector<float, kFloatLanes>;
using vi32 = Vector<int32_t, kFloatLanes>;
using vu32 = Vector<uint32_t, kFloatLanes>;
using vf64 = Vector<double, kDoubleLanes>;
using vi64 = Vector<int64_t, kDoubleLanes>;
using vu64 = Vector<uint64_t, kDoubleLanes>;

// ---- Construction, memory -----------------------------------------------------------------------

// All lanes equal to `value`.
template <class V = vf32>
EC_INLINE V broadcast(Element<V> value) {
  return value - V{};  // x - 0 is x for every x, -0 and NaN included; V{} + x would lose -0
}

// The bytes at p, as one element, in all lanes; p needs no alignment.
template <class V>
EC_INLINE V broadcast_from(const void* p) {
  Element<V> word;
  std::memcpy(&word, p, sizeof word);
  return broadcast<V>(word);
}

// 0, 1, 2, …
template <class V = vi32>
EC_INLINE V iota() {
  Element<V> lanes[kLanes<V>];
  for (int i = 0; i < kLanes<V>; ++i) lanes[i] = static_cast<Element<V>>(i);
  V v;
  std::memcpy(&v, lanes, sizeof v);
  return v;
}

// Loads and stores need the alignment of one element only.
template <class V = vf32>
EC_INLINE V load(const Element<V>* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
EC_INLINE void store(Element<V>* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// The first `n` lanes from memory, `fill` in the others; nothing past p[n-1] is touched. n >= 0
// may exceed the number of lanes. The loop becomes one masked load where the
// instruction set has it.
template <class V = vf32>
EC_INLINE V load_partial(const Element<V>* p, int64_t n, Element<V> fill = 0) {
  const int count = static_cast<int>(n < kLanes<V> ? n : kLanes<V>);  // 32-bit: a cheaper mask
  Element<V> lanes[kLanes<V>];
  for (int i = 0; i < kLanes<V>; ++i) lanes[i] = i < count ? p[i] : fill;
  return load<V>(lanes);
}
// Stores the first `n` lanes only.
template <class V>
EC_INLINE void store_partial(Element<V>* p, V v, int64_t n) {
  const int count = static_cast<int>(n < kLanes<V> ? n : kLanes<V>);
  Element<V> lanes[kLanes<V>];
  store(lanes, v);
  for (int i = 0; i < kLanes<V>; ++i) {
    if (i < count) p[i] = lanes[i];
  }
}

// ---- Lanes --------------------------------------------------------------------------------------

template <class V>
struct Halves {
  Half<V> low, high;
};
template <class V>
EC_INLINE Halves<V> split(V v) {
  Halves<V> h;
  std::memcpy(&h, &v, sizeof v);
  return h;
}
template <class H>
EC_INLINE Vector<Element<H>, 2 * kLanes<H>> join(H low, H high) {
  Vector<Element<H>, 2 * kLanes<H>> v;
#if __GNUC__ >= 12  // the general way below goes through the stack
  constexpr int n = kLanes<H>;
  v = [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(low, high, i...);
  }(std::make_integer_sequence<int, 2 * n>{});
#else
  const H parts[2] = {low, high};
  std::memcpy(&v, parts, sizeof v);
#endif
  return v;
}

// Lane i becomes lane from[i], one of the same vector's.
template <class V>
EC_INLINE V permute(V v, IntOf<V> from) {
  return __builtin_shuffle(v, from);
}

// f on every lane; for functions that exist only as scalars. The compiler vectorizes the loop when
// f is a builtin with a vector instruction (sqrt, floor, …).
template <class V, class F>
EC_INLINE V map(V a, const F& f) {
  Element<V> x[kLanes<V>], r[kLanes<V>];
  store(x, a);
  for (int i = 0; i < kLanes<V>; ++i) r[i] = f(x[i]);
  return load<V>(r);
}
template <class V, class F>
EC_INLINE V map(V a, V b, const F& f) {
  Element<V> x[kLanes<V>], y[kLanes<V>], r[kLanes<V>];
  store(x, a);
  store(y, b);
  for (int i = 0; i < kLanes<V>; ++i) r[i] = f(x[i], y[i]);
  return load<V>(r);
}

// ---- Arithmetic ---------------------------------------------------------------------------------

// a·b + c, contracted (see the top of the file).
template <class V>
EC_INLINE V fma(V a, V b, V c) {
  return a * b + c;
}
template <class V>
EC_INLINE V select(IntOf<V> mask, V a, V b) {
  return mask ? a : b;
}
// Keeps the compiler from knowing that `v` is a constant. GCC 12 finds the single instruction for
// min and max of two variables, but compares and blends when one is a constant.
template <class V>
EC_INLINE V opaque_constant(V v) {
#if defined(__x86_64__)
  if (__builtin_constant_p(v[0])) asm("" : "+v"(v));
#elif defined(__aarch64__)
  if (__builtin_constant_p(v[0])) asm("" : "+w"(v));
#endif
  return v;
}
// No instruction; but the compiler has to have the value in a register here, neither spilled nor
// folded into a constant.
template <class V>
EC_INLINE void keep_in_register(V& v) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(v));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(v));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(v));
#endif
}

// As x86's minps/maxps: b when either is NaN, so put the operand whose NaN must survive second.
template <class V>
EC_INLINE V min(V a, V b) {
  a = opaque_constant(a);
  b = opaque_constant(b);
  return a < b ? a : b;
}
template <class V>
EC_INLINE V max(V a, V b) {
  a = opaque_constant(a);
  b = opaque_constant(b);
  return a > b ? a : b;
}
template <class V>
EC_INLINE V sqrt(V a) {
  if constexpr (sizeof(Element<V>) == 4) {
    return map(a, [](float x) { return __builtin_sqrtf(x); });
  } else {
    return map(a, [](double x) { return __builtin_sqrt(x); });
  }
}

// ---- Bits, conversions --------------------------------------------------------------------------

// The same bits as another vector type of the same size.
template <class To, class V>
EC_INLINE To bits_as(V v) {
  static_assert(sizeof(To) == sizeof(V));
  return (To)v;
}
template <class V>
EC_INLINE IntOf<V> bits(V v) {
  return (IntOf<V>)v;
}
// By value, lane by lane. float to int truncates toward zero and is undefined out of range.
template <class To, class V>
EC_INLINE To convert(V v) {
  return __builtin_convertvector(v, To);
}

template <class V>
constexpr SignedElement<V> kSignBit = std::numeric_limits<SignedElement<V>>::min();

template <class V>
EC_INLINE V abs(V v) {
  return (V)((IntOf<V>)v & ~kSignBit<V>);
}
// The magnitude of `magnitude` with the sign of `sign`.
template <class V>
EC_INLINE V copysign(V magnitude, V sign) {
  return (V)(((IntOf<V>)magnitude & ~kSignBit<V>) | ((IntOf<V>)sign & kSignBit<V>));
}

// ---- Reductions ---------------------------------------------------------------------------------

template <class V, class F>
EC_INLINE Element<V> reduce(V v, const F& f) {
  if constexpr (sizeof(V) > 16 || (kLanes<V>) > 4) {
    const Halves<V> h = split(v);
    return reduce(f(h.low, h.high), f);
  } else if constexpr (kLanes<V> == 4) {
    v = f(v, __builtin_shuffle(v, IntOf<V>{2, 3, 0, 1}));
    v = f(v, __builtin_shuffle(v, IntOf<V>{1, 0, 3, 2}));
    return v[0];
  } else {
    static_assert(kLanes<V> == 2);
    v = f(v, __builtin_shuffle(v, IntOf<V>{1, 0}));
    return v[0];
  }
}
template <class V>
EC_INLINE Element<V> reduce_add(V v) {
  return reduce(v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}
template <class V>
EC_INLINE Element<V> reduce_max(V v) {
  return reduce(v, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
}
// True when any lane of a comparison's result is set.
template <class M>
EC_INLINE bool any(M mask) {
  return reduce(mask, [](auto a, auto b) __attribute__((always_inline)) { return a | b; }) != 0;
}
template <class M>
EC_INLINE bool all(M mask) {
  return !any(~mask);
}

}  // namespace ec
