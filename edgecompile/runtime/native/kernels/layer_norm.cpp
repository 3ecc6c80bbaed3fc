// Norms of rows.
#include "kernels/layer_norm.h"

#include <algorithm>
#include <cmath>

#include "math/simd.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int kL = kFloatLanes;
// Elements below which fork and join cost more than they save, and the least that a task takes.
constexpr int64_t kSerialElements = 16 * 1024;
constexpr int64_t kTaskElements = 4 * 1024;

// Elements that are summed up in single precision.
constexpr int64_t kBlock = 2048;

// Four sums, since one would wait for itself.
EC_INLINE float sum_block(const float* x, int64_t n) {
  vf32 a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * kL <= n; i += 4 * kL) {
    a += load(x + i);
    b += load(x + i + kL);
    c += load(x + i + 2 * kL);
    d += load(x + i + 3 * kL);
  }
  for (; i + kL <= n; i += kL) a += load(x + i);
  if (i < n) b += load_partial(x + i, n - i);
  return reduce_add((a + b) + (c + d));
}

EC_INLINE double sum_row(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kBlock) sum += sum_block(x + i, std::min(kBlock, n - i));
  return sum;
}

// Sums of what lies about a number, and of the squares of that.
struct Moments {
  double rest = 0, squares = 0;
};

EC_INLINE void add_block(const float* x, int64_t n, vf32 about, Moments& moments) {
  constexpr int kChains = 4;
  vf32 rest[kChains]{}, squares[kChains]{};
  int64_t i = 0;
  const auto add = [&](int chain, vf32 d) {
    rest[chain] += d;
    squares[chain] += d * d;
  };
  for (; i + kChains * kL <= n; i += kChains * kL) {
    for (int chain = 0; chain < kChains; ++chain) add(chain, load(x + i + chain * kL) - about);
  }
  for (; i + kL <= n; i += kL) add(0, load(x + i) - about);
  if (i < n) {
    const vi32 valid = iota<vi32>() < static_cast<int32_t>(n - i);
    add(1, select(valid, load_partial(x + i, n - i) - about, vf32{}));
  }
  moments.rest += reduce_add((rest[0] + rest[1]) + (rest[2] + rest[3]));
  moments.squares += reduce_add((squares[0] + squares[1]) + (squares[2] + squares[3]));
}

void normalise_row(int64_t n, const float* x, const float* weight, const float* bias, float eps,
                   float* out) {
  const double count = static_cast<double>(n);
  const auto first = static_cast<float>(sum_row(x, n) / count);
  // The squares of what lies about the mean: no digits are lost where the mean is large. What is
  // left of the mean is the rounding of its sum: of a row of equal values the norm would magnify
  // it.
  Moments moments;
  for (int64_t i = 0; i < n; i += kBlock) {
    add_block(x + i, std::min(kBlock, n - i), broadcast(first), moments);
  }
  const double rest = moments.rest / count;
  const auto mean = static_cast<float>(first + rest);
  const double variance = std::max(moments.squares / count - rest * rest, 0.0);
  const float factor = 1.0f / std::sqrt(static_cast<float>(variance) + eps);
  const auto result = [&](vf32 v, vf32 w, vf32 b) { return fma((v - mean) * factor, w, b); };
  const vf32 one = broadcast(1.0f);
  int64_t i = 0;
  for (; i + kL <= n; i += kL) {
    const vf32 w = weight != nullptr ? load(weight + i) : one;
    const vf32 b = bias != nullptr ? load(bias + i) : vf32{};
    store(out + i, result(load(x + i), w, b));
  }
  if (i < n) {
    const vf32 w = weight != nullptr ? load_partial(weight + i, n - i) : one;
    const vf32 b = bias != nullptr ? load_partial(bias + i, n - i) : vf32{};
    store_partial(out + i, result(load_partial(x + i, n - i), w, b), n - i);
  }
}

}  // namespace

void layer_norm(int64_t rows, int64_t n, const float* x, int64_t ld_x, const float* weight,
                const float* bias, float eps, float* out, int64_t ld_out) {
  if (rows <= 0 || n <= 0) return;
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      normalise_row(n, x + r * ld_x, weight, bias, eps, out + r * ld_out);
    }
  };
  if (rows * n < kSerialElements || num_threads() == 1) return run(0, rows);
  const int64_t tasks = std::clamp<int64_t>(rows * n / kTaskElements, 1, rows);
  parallel_for(tasks, [&](int64_t i) { run(rows * i / tasks, rows * (i + 1) / tasks); });
}

}  // namespace ec
