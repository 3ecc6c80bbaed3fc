// Convolutions with weights as torch keeps them.
#pragma once

#include "base/block.h"
#include "kernels/convolution/convolution.h"
#include "tensors/tensor.h"

namespace ec {

// Packs a float32 weight, [out, in of a group, …] or of a transposed convolution [in, out of a
// group, …] with any strides, to convolution.packed_elements() floats.
void pack_weights(const Convolution& convolution, const Tensor& weight, float* packed);

// out = conv(x) + bias in float64, with any strides; bias may be null. Right rather than fast.
// Throws Error for a bias that doesn't fit.
void convolve_double(const Convolution& convolution, const Tensor& x, const Tensor& weight,
                     const Tensor* bias, Tensor* out);

}  // namespace ec
