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

// Sets every element to value, converted to the dtype.
void fill_elements(double value, Tensor* target);

}  // namespace ec
