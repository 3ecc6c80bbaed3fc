// What the kernels share that go through tensors line by line along one dimension: sorts, scans,
// searches, scatters.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensors/copies.h"
#include "tensors/tensor.h"
#include "threads/threads.h"

namespace ec {

// The dimension that `dim` means, counted from the end if negative; a scalar has one of size 1.
// Throws Error if there is none.
int dimension_of(const Tensor& tensor, int64_t dim);

inline int64_t size_along(const Tensor& tensor, int dim) {
  return tensor.dims == 0 ? 1 : tensor.sizes[dim];
}
inline int64_t stride_along(const Tensor& tensor, int dim) {
  return tensor.dims == 0 ? 1 : tensor.strides[dim];
}

// The lines of tensors that agree in every size but that along `dim`.
class Lines {
 public:
  Lines(const Tensor& shape, int dim);

  int64_t count() const { return count_; }
  // From a tensor's first element to the first of a line, in elements.
  int64_t start(int64_t line, const Tensor& tensor) const;

 private:
  int dims_, along_;
  int64_t count_;
  int64_t sizes_[kMaxDims];
};

// f(line) for every line, on several threads if there is enough to do; `cost` is the work of one
// line in about nanoseconds.
template <class F>
void each_line(const Lines& lines, int64_t cost, const F& f) {
  constexpr int64_t kChunk = 20000;
  const int64_t group = std::max<int64_t>(1, kChunk / std::max<int64_t>(cost, 1));
  const int64_t groups = (lines.count() + group - 1) / group;
  const auto run = [&](int64_t g) {
    const int64_t end = std::min(lines.count(), (g + 1) * group);
    for (int64_t line = g * group; line < end; ++line) f(line);
  };
  if (groups == 1) {
    run(0);
  } else {
    parallel_for(groups, run);
  }
}

// Calls visitor with a value of the C++ type; fails for float16, complex and so on, naming what
// for.
template <class Visitor>
void visit_plain(int32_t dtype, const char* what, const Visitor& visitor) {
  switch (dtype) {
    case kUInt8:
      return visitor(uint8_t{});
    case kInt8:
      return visitor(int8_t{});
    case kInt16:
      return visitor(int16_t{});
    case kInt32:
      return visitor(int32_t{});
    case kInt64:
      return visitor(int64_t{});
    case kFloat32:
      return visitor(float{});
    case kFloat64:
      return visitor(double{});
    case kBool:
      return visitor(bool{});
    default:
      fail("%s of %s isn't supported", what, dtype_name(dtype));
  }
}

// Calls visitor(float{}) or visitor(double{}).
template <class Visitor>
void visit_floats(int32_t dtype, const char* what, const Visitor& visitor) {
  switch (dtype) {
    case kFloat32:
      return visitor(float{});
    case kFloat64:
      return visitor(double{});
    default:
      fail("%s of %s isn't supported", what, dtype_name(dtype));
  }
}

}  // namespace ec
