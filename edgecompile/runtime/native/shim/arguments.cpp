// Checks and conversions of what generated code hands to operators.
#include "shim/arguments.h"

#include "shim/transposition.h"

namespace ec {

void require_float32(const Tensor& tensor, const char* role) {
  if (tensor.dtype != kFloat32) {
    fail("%s is %s, this kernel computes in float32 only", role, dtype_name(tensor.dtype));
  }
}

void require_dims(const Tensor& tensor, int dims, const char* role) {
  if (tensor.dims != dims) fail("%s has %d dimensions instead of %d", role, tensor.dims, dims);
}

MatrixView matrix_view(const Tensor& tensor) {
  const int row = tensor.dims - 2;
  return {tensor.as<float>(),     row > 0 ? tensor.sizes[0] : 1,   tensor.sizes[row],
          tensor.sizes[row + 1],  row > 0 ? tensor.strides[0] : 0, tensor.strides[row],
          tensor.strides[row + 1]};
}

RowsView::RowsView(const Tensor& tensor) {
  const Tensor* source = &tensor;
  if (tensor.dims == 0) fail("a scalar has no rows");
  const int last = tensor.dims - 1;
  bool collapsible = tensor.strides[last] == 1 || tensor.sizes[last] <= 1;
  int64_t rows = 1;
  int64_t stride = 0;
  for (int i = last - 1; i >= 0 && collapsible; --i) {
    if (tensor.sizes[i] == 1) continue;
    if (rows == 1) {
      stride = tensor.strides[i];
    } else {
      collapsible = tensor.strides[i] == stride * rows;
    }
    rows *= tensor.sizes[i];
  }
  if (!collapsible) {
    copy_.reset(new_row_major(tensor));
    source = copy_.get();
    rows = 1;
    for (int i = 0; i < last; ++i) rows *= source->sizes[i];
    stride = source->sizes[last];
  }
  data_ = source->as<float>();
  rows_ = rows;
  columns_ = source->sizes[last];
  row_stride_ = rows == 1 ? columns_ : stride;
}

const Tensor& with_contiguous_last(const Tensor& tensor, OwnedTensor* holder) {
  const int last = tensor.dims - 1;
  if (last >= 0 && (tensor.strides[last] == 1 || tensor.sizes[last] <= 1)) return tensor;
  holder->reset(new_contiguous_copy(tensor));
  return **holder;
}

Tensor* new_broadcast(const Tensor& tensor, int64_t dims, const int64_t* sizes, const char* role) {
  if (tensor.dims > dims) {
    fail("%s has %d dimensions, at most %lld fit", role, tensor.dims, static_cast<long long>(dims));
  }
  int64_t strides[kMaxDims] = {};
  const int64_t lead = dims - tensor.dims;
  for (int64_t i = lead; i < dims; ++i) {
    const int64_t own = tensor.sizes[i - lead];
    if (own != sizes[i] && own != 1) {
      fail("%s has size %lld in dimension %lld, %lld is needed", role, static_cast<long long>(own),
           static_cast<long long>(i - lead), static_cast<long long>(sizes[i]));
    }
    if (own != 1) strides[i] = tensor.strides[i - lead];
  }
  return new_view(tensor, dims, sizes, strides, tensor.offset, tensor.dtype);
}

}  // namespace ec
