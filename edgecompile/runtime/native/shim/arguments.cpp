// Checks and conversions of what generated code hands to operators.
#include "shim/arguments.h"

#include <algorithm>

#include "kernels/gemm/packed_weight.h"
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

void set_activation(int64_t number, Epilogue* epilogue) {
  epilogue->act_last = number >= kActLast;
  const int64_t kind = epilogue->act_last ? number - kActLast : number;
  if (kind < 0 || kind > static_cast<int64_t>(Activation::kHardsigmoid)) {
    fail("activation %ld is unknown", number);
  }
  epilogue->act = static_cast<Activation>(kind);
}

int64_t require_packed(const Tensor& packed, int64_t n, int64_t k, int64_t count) {
  const int64_t each = packed_count(packed, n, k, count);
  if (packed.numel() != count * each || !is_contiguous(packed)) {
    fail("w_packed has %ld elements, %s packed [%ld, %ld] of %s has %ld", packed.numel(),
         count == 1 ? "a" : "each", n, k, dtype_name(packed.dtype), each);
  }
  return each;
}

const int64_t* int64s_of(const Tensor& tensor, OwnedTensor* holder) {
  return row_major(converted(tensor, kInt64, holder), holder).as<int64_t>();
}

const int64_t* int64s_of_texts(const Tensor& tensor, int64_t texts, const char* role) {
  if (tensor.dtype != kInt64 || tensor.numel() != texts ||
      (texts > 1 && tensor.strides[tensor.dims - 1] != 1)) {
    fail("%s aren't int64 of %ld texts", role, texts);
  }
  return tensor.as<int64_t>();
}

const float* vector_of(const Tensor* tensor, int64_t n, const char* role, OwnedTensor* holder) {
  if (tensor == nullptr) return nullptr;
  require_float32(*tensor, role);
  if (tensor->dims != 1 || tensor->sizes[0] != n) {
    fail("%s is no vector of %ld elements", role, n);
  }
  return with_contiguous_last(*tensor, holder).as<float>();
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

void broadcast_sizes(const Tensor& tensor, const char* what, int* dims, int64_t* sizes) {
  const int wider = std::max(*dims, static_cast<int>(tensor.dims));
  for (int d = wider - 1; d >= 0; --d) {
    const int mine = d - (wider - *dims), other = d - (wider - tensor.dims);
    const int64_t a = mine >= 0 ? sizes[mine] : 1;
    const int64_t b = other >= 0 ? tensor.sizes[other] : 1;
    if (a != b && a != 1 && b != 1) fail("%s don't broadcast to each other", what);
    sizes[d] = a == 1 ? b : a;
  }
  *dims = wider;
}

Tensor* new_broadcast(const Tensor& tensor, int64_t dims, const int64_t* sizes, const char* role) {
  if (tensor.dims > dims) {
    fail("%s has %d dimensions, at most %ld fit", role, tensor.dims, dims);
  }
  int64_t strides[kMaxDims] = {};
  const int64_t lead = dims - tensor.dims;
  for (int64_t i = lead; i < dims; ++i) {
    const int64_t own = tensor.sizes[i - lead];
    if (own != sizes[i] && own != 1) {
      fail("%s has size %ld in dimension %ld, %ld is needed", role, own, i - lead, sizes[i]);
    }
    if (own != 1) strides[i] = tensor.strides[i - lead];
  }
  return new_view(tensor, dims, sizes, strides, tensor.offset, tensor.dtype);
}

}  // namespace ec
