// Checks and views that the compute kernels of the C ABI share.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm.h"
#include "tensors/copies.h"
#include "tensors/tensor.h"

namespace ec {

// Throws Error that names the dtype unless the tensor is float32. `role` is the argument's name.
void require_float32(const Tensor& tensor, const char* role);
void require_dims(const Tensor& tensor, int dims, const char* role);

// A matrix or a batch of them, as gemm.h sees it.
struct MatrixView {
  float* data;
  int64_t batch, rows, columns;
  int64_t batch_stride, row_stride, column_stride;
};
MatrixView matrix_view(const Tensor& tensor);  // of a 2-D or 3-D float32 tensor

// Views a tensor [..., K] as rows×K with contiguous rows; copies it if it can't be.
class RowsView {
 public:
  explicit RowsView(const Tensor& tensor);
  const float* data() const { return data_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t row_stride() const { return row_stride_; }

 private:
  OwnedTensor copy_;
  const float* data_;
  int64_t rows_, columns_, row_stride_;
};

// Sets the activation of this number; those from kActLast on follow the residual's sum. Throws
// Error if there is none.
constexpr int64_t kActLast = 32;
void set_activation(int64_t number, Epilogue* epilogue);

// Elements of one [n, k] weight packed as `packed` is (packed_weight.h). Throws Error unless it has
// `count` of them behind each other.
int64_t require_packed(const Tensor& packed, int64_t n, int64_t k, int64_t count = 1);

// The elements in row-major order as int64, of the tensor itself or of a copy that `holder` owns.
const int64_t* int64s_of(const Tensor& tensor, OwnedTensor* holder);

// The contiguous int64 of a tensor with one for each of several texts.
const int64_t* int64s_of_texts(const Tensor& tensor, int64_t texts, const char* role);

// The n contiguous floats of a vector, or of a copy that `holder` owns; null for null.
const float* vector_of(const Tensor* tensor, int64_t n, const char* role, OwnedTensor* holder);

// The tensor itself if its last dimension is contiguous, else a row-major copy that `holder` owns.
const Tensor& with_contiguous_last(const Tensor& tensor, OwnedTensor* holder);

// Broadcasts the sizes of `what` with the tensor's, from the right. Throws Error if they don't fit.
void broadcast_sizes(const Tensor& tensor, const char* what, int* dims, int64_t* sizes);

// The tensor broadcast to `dims` sizes: a view with stride 0 where it was repeated. Throws Error
// if it can't be.
Tensor* new_broadcast(const Tensor& tensor, int64_t dims, const int64_t* sizes, const char* role);

}  // namespace ec
