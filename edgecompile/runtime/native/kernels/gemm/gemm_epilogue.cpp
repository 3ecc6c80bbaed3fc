// Steps after a product, over rows of C while they are in the nearest cache.
#include "kernels/gemm/gemm.h"
#include "math/simd.h"
#include "math/vecmath.h"

namespace ec {
namespace {

EC_INLINE vf32 relu6(vf32 x) { return min(broadcast(6.0f), max(vf32{}, x)); }
EC_INLINE vf32 hardsigmoid(vf32 x) { return relu6(x + 3.0f) * (1.0f / 6.0f); }

// f(function of a vector) for the one that `act` names.
template <class F>
EC_INLINE void with_activation(Activation act, const F& f) {
  switch (act) {
    case Activation::kNone:
      return f([](vf32 v) { return v; });
    case Activation::kRelu:  // NaN stays, as in all of these
      return f([](vf32 v) { return max(vf32{}, v); });
    case Activation::kGeluErf:
      return f([](vf32 v) { return vgelu_erf(v); });
    case Activation::kGeluTanh:
      return f([](vf32 v) { return vgelu_tanh(v); });
    case Activation::kSilu:
      return f([](vf32 v) { return vsilu(v); });
    case Activation::kTanh:
      return f([](vf32 v) { return vtanh(v); });
    case Activation::kSigmoid:
      return f([](vf32 v) { return vsigmoid(v); });
    case Activation::kRelu6:
      return f([](vf32 v) { return relu6(v); });
    case Activation::kHardswish:
      return f([](vf32 v) { return v * hardsigmoid(v); });
    case Activation::kHardsigmoid:
      return f([](vf32 v) { return hardsigmoid(v); });
  }
}

// x[i] = f(x[i], y[i]) for n floats; y may be x.
template <class F>
EC_INLINE void apply(float* x, const float* y, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kFloatLanes <= n; i += kFloatLanes) store(x + i, f(load(x + i), load(y + i)));
  if (i == n) return;
  store_partial(x + i, f(load_partial(x + i, n - i), load_partial(y + i, n - i)), n - i);
}

}  // namespace

void finish_rows(const Epilogue& e, const float* residual, float* c, int64_t ldc, int64_t rows,
                 int64_t columns) {
  if (residual == nullptr && e.act == Activation::kNone) return;
  const vf32 beta = broadcast(e.beta);
  with_activation(e.act, [&](const auto& act) {
    for (int64_t r = 0; r < rows; ++r) {
      float* const x = c + r * ldc;
      if (residual == nullptr) {
        apply(x, x, columns, [&](vf32 v, vf32) { return act(v); });
        continue;
      }
      const float* const y = residual + r * e.ld_residual;
      if (e.act_last) {
        apply(x, y, columns, [&](vf32 v, vf32 w) { return act(fma(beta, w, v)); });
      } else {
        apply(x, y, columns, [&](vf32 v, vf32 w) { return fma(beta, w, act(v)); });
      }
    }
  });
}

}  // namespace ec
