// Activations over rows of C while they are in the nearest cache.
#include "kernels/gemm/gemm.h"
#include "math/simd.h"
#include "math/vecmath.h"

namespace ec {
namespace {

template <class F>
EC_INLINE void apply(float* x, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kFloatLanes <= n; i += kFloatLanes) store(x + i, f(load(x + i)));
  if (i < n) store_partial(x + i, f(load_partial(x + i, n - i)), n - i);
}

}  // namespace

void activate(Activation act, float* x, int64_t n) {
  switch (act) {
    case Activation::kNone:
      return;
    case Activation::kRelu:  // NaN stays
      return apply(x, n, [](vf32 v) { return max(vf32{}, v); });
    case Activation::kGeluErf:
      return apply(x, n, [](vf32 v) { return vgelu_erf(v); });
    case Activation::kGeluTanh:
      return apply(x, n, [](vf32 v) { return vgelu_tanh(v); });
    case Activation::kSilu:
      return apply(x, n, [](vf32 v) { return vsilu(v); });
    case Activation::kTanh:
      return apply(x, n, [](vf32 v) { return vtanh(v); });
    case Activation::kSigmoid:
      return apply(x, n, [](vf32 v) { return vsigmoid(v); });
  }
}

}  // namespace ec
