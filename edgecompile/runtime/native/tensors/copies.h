// Copying between strided tensors, with broadcasting and conversion of element types.
#pragma once

#include "tensors/tensor.h"

namespace ec {

// target[...] = source[...], source broadcast to target's sizes and converted to its dtype like
// Tensor.copy_: integers truncate, anything not zero becomes true. Reads all of an overlapping
// source first. Throws Error for shapes that don't broadcast and for dtypes it cannot convert
// (complex, float8); equal dtypes of any kind are copied.
void copy_elements(const Tensor& source, Tensor* target);

// New tensors with the elements of source.
Tensor* new_clone(const Tensor& source);            // preserved strides, as aten::clone
Tensor* new_contiguous_copy(const Tensor& source);  // row-major

// The tensor itself if it is row-major, or has the dtype, else a row-major copy that `holder` owns.
const Tensor& row_major(const Tensor& tensor, OwnedTensor* holder);
const Tensor& converted(const Tensor& tensor, int32_t dtype, OwnedTensor* holder);

// What values of a dtype are computed in: float32 for float16 and bfloat16, which it holds exactly.
inline int32_t wide_dtype(int32_t dtype) {
  return dtype == kFloat16 || dtype == kBFloat16 ? static_cast<int32_t>(kFloat32) : dtype;
}
// A tensor of this dtype with the elements and strides of `result`, which is used up.
Tensor* narrowed(OwnedTensor* result, int32_t dtype);

// f(value of a type with that many bytes), to move elements of any dtype.
template <class F>
void visit_bytes(int64_t bytes, const F& f) {
  struct Pair {
    uint64_t halves[2];
  };
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return f(Pair{});  // complex128
  }
}

// Sets every element to value, converted to the dtype.
void fill_elements(double value, Tensor* target);

}  // namespace ec
