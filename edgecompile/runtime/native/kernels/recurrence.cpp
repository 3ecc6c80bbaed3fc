// LSTM, GRU and RNN, step by step.
#include "kernels/recurrence.h"

#include "base/scratch.h"
#include "kernels/gemm/packed_weight.h"
#include "kernels/vectors.h"
#include "math/simd.h"
#include "math/vecmath.h"
#include "threads/threads.h"

namespace ec {
namespace {

// Elements of a step's gates from which they are worth several threads.
constexpr int64_t kParallelElements = 16 * 1024;

// f(from, count) over a row of the state, by vectors; the last one may be partial.
template <class F>
EC_INLINE void each_vector(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kFloatLanes <= n; i += kFloatLanes) f(i, int64_t{kFloatLanes});
  if (i < n) f(i, n - i);
}

// One row: x is the input's share, z the sum of both for LSTM and RNN and the state's share for a
// GRU, h the state before.
void step_row(Recurrence kind, int64_t n, const float* x, const float* z, const float* h, float* c,
              float* y) {
  switch (kind) {
    case Recurrence::kLstm:
      each_vector(n, [&](int64_t i, int64_t count) {
        const vf32 in = vsigmoid(at(z + i, count)), forget = vsigmoid(at(z + n + i, count));
        const vf32 cell = vtanh(at(z + 2 * n + i, count)), out = vsigmoid(at(z + 3 * n + i, count));
        const vf32 next = fma(forget, at(c + i, count), in * cell);
        put(c + i, next, count);
        put(y + i, out * vtanh(next), count);
      });
      return;
    case Recurrence::kGru:
      each_vector(n, [&](int64_t i, int64_t count) {
        const vf32 reset = vsigmoid(at(x + i, count) + at(z + i, count));
        const vf32 keep = vsigmoid(at(x + n + i, count) + at(z + n + i, count));
        const vf32 fresh = vtanh(fma(reset, at(z + 2 * n + i, count), at(x + 2 * n + i, count)));
        put(y + i, fma(keep, at(h + i, count) - fresh, fresh), count);
      });
      return;
    case Recurrence::kRnnTanh:
      each_vector(n, [&](int64_t i, int64_t count) { put(y + i, vtanh(at(z + i, count)), count); });
      return;
    case Recurrence::kRnnRelu:
      each_vector(
          n, [&](int64_t i, int64_t count) { put(y + i, max(vf32{}, at(z + i, count)), count); });
      return;
  }
}

}  // namespace

void run_recurrence(const RecurrenceSteps& s) {
  const int64_t width = gate_count(s.kind) * s.hidden;
  const int64_t state = s.batch * s.hidden;
  thread_local Scratch scratch;
  float* const z = scratch.get(s.batch * width);
  const float* h = s.h0;
  for (int64_t i = 0; i < s.length; ++i) {
    const int64_t t = s.reverse ? s.length - 1 - i : i;
    const float* const x = s.gates + t * s.batch * width;
    Epilogue epilogue;
    epilogue.bias = s.bias;
    if (s.kind != Recurrence::kGru) {
      epilogue.residual = x;
      epilogue.ld_residual = width;
    }
    gemm_weight(*s.w_packed, s.w_packed->numel(), 0, s.batch, width, s.hidden, h, s.hidden, z,
                width, epilogue);
    float* const y = s.y + t * state;
    const auto row = [&](int64_t b) {
      step_row(s.kind, s.hidden, x + b * width, z + b * width, h + b * s.hidden, s.c + b * s.hidden,
               y + b * s.hidden);
    };
    if (s.batch > 1 && s.batch * width >= kParallelElements) {
      parallel_for(s.batch, row);
    } else {
      for (int64_t b = 0; b < s.batch; ++b) row(b);
    }
    h = y;
  }
}

}  // namespace ec
