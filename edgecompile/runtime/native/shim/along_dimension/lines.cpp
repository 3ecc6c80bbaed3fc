// Lines of a tensor along one dimension.
#include "shim/along_dimension/lines.h"

namespace ec {

int dimension_of(const Tensor& tensor, int64_t dim) {
  const int64_t dims = std::max(tensor.dims, 1);
  if (dim < -dims || dim >= dims) {
    fail("dimension %ld of %d", dim, tensor.dims);
  }
  return static_cast<int>(dim < 0 ? dim + dims : dim);
}

Lines::Lines(const Tensor& shape, int dim) : dims_(shape.dims), along_(dim), count_(1) {
  for (int d = 0; d < dims_; ++d) {
    sizes_[d] = shape.sizes[d];
    if (d != along_) count_ *= sizes_[d];
  }
}

int64_t Lines::start(int64_t line, const Tensor& tensor) const {
  int64_t offset = 0;
  for (int d = dims_ - 1; d >= 0; --d) {
    if (d == along_) continue;
    offset += line % sizes_[d] * tensor.strides[d];
    line /= sizes_[d];
  }
  return offset;
}

}  // namespace ec
