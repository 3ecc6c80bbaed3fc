// Functions of single numbers by those of vectors: the value for an element doesn't depend on
// whether its loop has vectors. So a row of a run is the same beside others as alone.
#pragma once

#include <cmath>
#include <type_traits>

namespace ec {

#if INDUCTOR_USE_VECTOR_TYPES()
#define EC_ONE_LANE(name)                                \
  template <class T>                                     \
  inline auto one_##name(T x) {                          \
    if constexpr (std::is_same_v<T, float>) {            \
      float lanes[at::vec::Vectorized<float>::size()];   \
      at::vec::Vectorized<float>(x).name().store(lanes); \
      return lanes[0];                                   \
    } else {                                             \
      return std::name(x);                               \
    }                                                    \
  }
#else
#define EC_ONE_LANE(name)       \
  template <class T>            \
  inline auto one_##name(T x) { \
    return std::name(x);        \
  }
#endif
EC_ONE_LANE(cos)
EC_ONE_LANE(sin)
EC_ONE_LANE(exp)
EC_ONE_LANE(log)
EC_ONE_LANE(log1p)
EC_ONE_LANE(tanh)
EC_ONE_LANE(erf)
EC_ONE_LANE(atan)
#undef EC_ONE_LANE

}  // namespace ec
