// Row-major copies of tensors whose last dimension isn't contiguous.
#include "shim/transposition.h"

#include <algorithm>

#include "base/profile.h"
#include "kernels/gemm/gemm_pack.h"
#include "tensors/copies.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int64_t kTaskElements = 16 * 1024;

// The dimensions, those taken together that lie like one.
struct Merged {
  int dims = 0;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];
};

Merged merge(const Tensor& t) {
  Merged m;
  for (int i = 0; i < t.dims; ++i) {
    if (t.sizes[i] == 1) continue;
    if (m.dims > 0 && m.strides[m.dims - 1] == t.strides[i] * t.sizes[i]) {
      m.sizes[m.dims - 1] *= t.sizes[i];
      m.strides[m.dims - 1] = t.strides[i];
    } else {
      m.sizes[m.dims] = t.sizes[i];
      m.strides[m.dims++] = t.strides[i];
    }
  }
  return m;
}

}  // namespace

Tensor* new_row_major(const Tensor& source) {
  const Merged m = merge(source);
  const int last = m.dims - 1;
  if (source.dtype != kFloat32 || source.numel() == 0 || m.dims < 2 || m.strides[last] == 1 ||
      m.strides[last - 1] != 1) {
    return new_contiguous_copy(source);
  }
  OwnedTensor copy(new_contiguous(source.dims, source.sizes, kFloat32));
  const WorkTimer timer(Work::kCopy, {.bytes = 8 * source.numel()});
  const int64_t rows = m.sizes[last - 1], depth = m.sizes[last];
  const int64_t matrices = source.numel() / (rows * depth);
  const float* const from = source.as<float>();
  float* const to = copy->as<float>();
  // Pieces of at least a cache line of the source.
  const int64_t pieces = std::clamp<int64_t>(rows * depth / kTaskElements, 1, (rows + 63) / 64);
  const auto run = [&](int64_t task) {
    const int64_t matrix = task / pieces, piece = task % pieces;
    int64_t at = 0, rest = matrix;
    for (int i = last - 2; i >= 0; --i) {
      at += rest % m.sizes[i] * m.strides[i];
      rest /= m.sizes[i];
    }
    const int64_t begin = rows * piece / pieces, end = rows * (piece + 1) / pieces;
    copy_rows(from + at + begin, 1, m.strides[last], end - begin, depth, 1.0f,
              to + (matrix * rows + begin) * depth, depth);
  };
  if (matrices * pieces == 1 || source.numel() < kTaskElements) {
    for (int64_t task = 0; task < matrices * pieces; ++task) run(task);
  } else {
    parallel_for(matrices * pieces, run);
  }
  return copy.release();
}

}  // namespace ec
