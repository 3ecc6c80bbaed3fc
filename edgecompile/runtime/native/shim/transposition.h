// Row-major copies of tensors whose last dimension isn't contiguous.
#pragma once

#include "tensors/tensor.h"

namespace ec {

// A row-major copy, by all threads in squares where two dimensions of a float32 tensor change
// places: channels from behind the pixels to before them, and back.
Tensor* new_row_major(const Tensor& source);

}  // namespace ec
