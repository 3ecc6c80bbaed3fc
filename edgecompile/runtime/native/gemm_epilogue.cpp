#include <cmath>

#include "gemm.h"

namespace ec {

void activate(Activation act, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i];
    switch (act) {
      case Activation::kNone:
        return;
      case Activation::kRelu:
        x[i] = v < 0 ? 0 : v;
        break;
      case Activation::kGeluErf:
        x[i] = 0.5f * v * (1.0f + std::erf(v * 0.70710678f));
        break;
      case Activation::kGeluTanh:
        x[i] = 0.5f * v * (1.0f + std::tanh(0.79788456f * (v + 0.044715f * v * v * v)));
        break;
      case Activation::kSilu:
        x[i] = v / (1.0f + std::exp(-v));
        break;
      case Activation::kTanh:
        x[i] = std::tanh(v);
        break;
      case Activation::kSigmoid:
        x[i] = 1.0f / (1.0f + std::exp(-v));
        break;
    }
  }
}

}  // namespace ec
