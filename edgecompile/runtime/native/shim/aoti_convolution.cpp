// Convolutions of AOTInductor's C ABI, and our own operator, on convolution.h.
#include <algorithm>

#include "base/profile.h"
#include "kernels/convolution/convolution.h"
#include "kernels/convolution/convolution_plain.h"
#include "shim/arguments.h"
#include "shim/handles.h"
#include "shim/transposition.h"

namespace ec {
namespace {

struct Numbers {
  const int64_t* data;
  int64_t count;
};

// One number for each spatial dimension, none below `least`.
void require_numbers(const Numbers& numbers, int64_t count, int64_t least, const char* role) {
  if (numbers.count != count || numbers.data == nullptr) {
    fail("%s has %ld elements instead of %ld", role, numbers.count, count);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (numbers.data[i] < least) {
      fail("%s is %ld in dimension %ld", role, numbers.data[i], i);
    }
  }
}

// The settings of both operators. `padding` has 2·spatial elements.
struct Settings {
  Numbers kernel, stride, padding, dilation;
  bool transposed;
  int64_t groups, channels_out;
};

Convolution describe(const Tensor& x, const Settings& s) {
  const int64_t spatial = x.dims - 2;
  if (spatial < 1 || spatial > kMaxSpatial) {
    fail("the input has %d dimensions, a convolution takes 3 to 5", x.dims);
  }
  require_numbers(s.kernel, spatial, 1, "kernel");
  require_numbers(s.stride, spatial, 1, "stride");
  require_numbers(s.dilation, spatial, 1, "dilation");
  require_numbers(s.padding, 2 * spatial, INT64_MIN, "padding");
  Convolution c;
  c.batch = x.sizes[0];
  c.channels_in = x.sizes[1];
  c.channels_out = s.channels_out;
  c.groups = s.groups;
  c.transposed = s.transposed;
  if (c.groups < 1 || c.channels_out < 0 || c.channels_in % c.groups != 0 ||
      c.channels_out % c.groups != 0) {
    fail("%ld channels in and %ld out can't be divided into %ld groups", c.channels_in,
         c.channels_out, c.groups);
  }
  for (int64_t i = 0; i < spatial; ++i) {
    ConvAxis& axis = c.axes[kMaxSpatial - spatial + i];
    axis.in = x.sizes[2 + i];
    axis.kernel = s.kernel.data[i];
    axis.stride = s.stride.data[i];
    axis.dilation = s.dilation.data[i];
    axis.padding = s.padding.data[i];
    const int64_t padding = axis.padding + s.padding.data[spatial + i];
    const int64_t span = axis.dilation * (axis.kernel - 1) + 1;
    if (s.transposed) {
      axis.out = (axis.in - 1) * axis.stride + span - padding;
    } else {
      axis.out = axis.in + padding < span ? -1 : (axis.in + padding - span) / axis.stride + 1;
    }
    if (axis.out < 0) {
      fail(
          "dimension %ld of the input, %ld with %ld of padding, is too small for a kernel of "
          "%ld",
          i, axis.in, padding, span);
    }
  }
  return c;
}

// The sizes [batch, channels, …] of the result.
void result_sizes(const Convolution& c, int64_t dims, int64_t* sizes) {
  sizes[0] = c.batch;
  sizes[1] = c.channels_out;
  for (int64_t i = 2; i < dims; ++i) sizes[i] = c.axes[kMaxSpatial - dims + i].out;
}

// A view of [batch, channels, …] as [batch, …, channels].
Tensor* new_channels_behind(const Tensor& t) {
  int64_t sizes[kMaxDims] = {t.sizes[0]}, strides[kMaxDims] = {t.strides[0]};
  for (int i = 2; i < t.dims; ++i) {
    sizes[i - 1] = t.sizes[i];
    strides[i - 1] = t.strides[i];
  }
  sizes[t.dims - 1] = t.sizes[1];
  strides[t.dims - 1] = t.strides[1];
  return new_view(t, t.dims, sizes, strides, t.offset, t.dtype);
}

// An uninitialised [batch, channels, …] whose channels lie together.
Tensor* new_channels_last(int64_t dims, const int64_t* sizes, int32_t dtype) {
  int64_t strides[kMaxDims];
  int64_t step = sizes[1];
  for (int64_t i = dims - 1; i >= 2; --i) {
    strides[i] = step;
    step *= sizes[i];
  }
  strides[0] = step;
  strides[1] = 1;
  return new_empty(dims, sizes, strides, dtype);
}

// Operations are those of the taps, which tiles save a part of.
WorkSize work_of(const Convolution& c, bool with_residual) {
  const int64_t products = c.transposed ? c.places_in() : c.places_out();
  return {.n = c.channels_out,
          .k = c.k(),
          .dtype = kFloat32,
          .flops = 2 * products * c.channels_out * c.k(),
          .bytes = 4 * (c.places_in() * c.channels_in + c.packed_elements() +
                        (with_residual ? 2 : 1) * c.places_out() * c.channels_out)};
}

// [batch, channels, …] as [batch, …, channels] without gaps: a view if it lies so, else a copy.
Tensor* new_pixels(const Tensor& t) {
  OwnedTensor pixels(new_channels_behind(t));
  return is_contiguous(*pixels) ? pixels.release() : new_row_major(*pixels);
}

// convolve()'s result, channels-last. The epilogue's residual isn't set; this one may be null.
Tensor* new_convolution(const Convolution& c, const Tensor& x, const float* packed,
                        const Tensor* residual, Epilogue epilogue) {
  int64_t sizes[kMaxDims];
  result_sizes(c, x.dims, sizes);
  OwnedTensor addend;
  if (residual != nullptr) {
    require_float32(*residual, "residual");
    if (residual->dims != x.dims || !std::equal(sizes, sizes + x.dims, residual->sizes)) {
      fail("residual doesn't have the result's sizes");
    }
    addend.reset(new_pixels(*residual));
    epilogue.residual = addend->as<float>();
  }
  const OwnedTensor pixels(new_pixels(x));
  OwnedTensor result(new_channels_last(x.dims, sizes, kFloat32));
  convolve(c, pixels->as<float>(), packed, epilogue, result->as<float>());
  return result.release();
}

// Whether torch takes the strides for those of channels-last: the rule of c10's
// is_channels_last_strides_2d and _3d. A vector of pixels counts as an image of one line.
bool looks_channels_last(const Tensor& t) {
  int64_t min = 0;
  const auto ascends = [&](int d) {
    if (t.sizes[d] == 0 || t.strides[d] < min) return false;
    if (d == 0 && min == t.strides[1]) return false;
    min = t.strides[d] * std::max<int64_t>(1, t.sizes[d]);
    return true;
  };
  if (t.strides[1] == 0 || !ascends(1)) return false;
  for (int d = t.dims - 1; d >= 2; --d) {
    if (!ascends(d)) return false;
  }
  return ascends(0);
}

// Whether torch's result would be channels-last; torch makes inputs [batch, channels, length]
// contiguous first, so that only their weights count.
bool torchs_result_is_channels_last(const Tensor& x, const Tensor& weight) {
  return looks_channels_last(weight) || (x.dims > 3 && looks_channels_last(x));
}

// torch's convolution: plain weights, any strides, any floating type.
Tensor* new_plain(const Tensor& given_x, const Tensor& given_weight, const Tensor* given_bias,
                  Settings s, const Numbers& output_padding) {
  const int64_t spatial = given_x.dims - 2;
  if (given_weight.dims != given_x.dims) {
    fail("the input has %d dimensions, the weight %d", given_x.dims, given_weight.dims);
  }
  if (given_weight.dtype != given_x.dtype ||
      (given_bias != nullptr && given_bias->dtype != given_x.dtype)) {
    fail("input, weight and bias are not all %s", dtype_name(given_x.dtype));
  }
  if (spatial < 1 || spatial > kMaxSpatial) {
    fail("the input has %d dimensions, a convolution takes 3 to 5", given_x.dims);
  }
  require_numbers(s.padding, spatial, 0, "padding");
  require_numbers(output_padding, spatial, 0, "output_padding");
  int64_t padding[2 * kMaxSpatial];
  for (int64_t i = 0; i < spatial; ++i) {
    padding[i] = s.padding.data[i];
    padding[spatial + i] = s.padding.data[i] - (s.transposed ? output_padding.data[i] : 0);
  }
  s.padding = {padding, 2 * spatial};
  s.kernel = {given_weight.sizes + 2, spatial};
  s.channels_out = s.transposed ? given_weight.sizes[1] * s.groups : given_weight.sizes[0];
  const Convolution c = describe(given_x, s);
  const int64_t channels = s.transposed ? given_weight.sizes[0] : given_weight.sizes[1] * s.groups;
  if (channels != c.channels_in) {
    fail("the weight is for %ld channels, the input has %ld", channels, c.channels_in);
  }
  const WorkTimer timer(Work::kConvolution, work_of(c, false));

  const int32_t dtype = wide_dtype(given_x.dtype);
  if (dtype != kFloat32 && dtype != kFloat64) {
    fail("a convolution of %s is not supported", dtype_name(dtype));
  }
  OwnedTensor x_float, weight_float, bias_float, bias_copy, result;
  const Tensor& x = converted(given_x, dtype, &x_float);
  const Tensor& weight = converted(given_weight, dtype, &weight_float);
  const Tensor* const bias =
      given_bias == nullptr ? nullptr : &converted(*given_bias, dtype, &bias_float);
  int64_t sizes[kMaxDims];
  result_sizes(c, x.dims, sizes);
  if (x.dtype == kFloat64) {
    result.reset(new_channels_last(x.dims, sizes, kFloat64));
    convolve_double(c, x, weight, bias, result.get());
  } else {
    const Block packed(std::max<int64_t>(1, c.packed_elements()));
    pack_weights(c, weight, packed.get());
    const float* const vector = vector_of(bias, c.channels_out, "bias", &bias_copy);
    result.reset(new_convolution(c, x, packed.get(), nullptr, {.bias = vector}));
  }
  if (!torchs_result_is_channels_last(given_x, given_weight)) {
    result.reset(new_row_major(*result));
  }
  return narrowed(&result, given_x.dtype);
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_convolution(
    AtenTensorHandle input, AtenTensorHandle weight, AtenTensorHandle* bias, const int64_t* stride,
    int64_t stride_len_, const int64_t* padding, int64_t padding_len_, const int64_t* dilation,
    int64_t dilation_len_, int32_t transposed, const int64_t* output_padding,
    int64_t output_padding_len_, int64_t groups, AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_convolution", [&] {
    const Settings settings{{nullptr, 0},
                            {stride, stride_len_},
                            {padding, padding_len_},
                            {dilation, dilation_len_},
                            transposed != 0,
                            groups,
                            0};
    *ret0 = wrap(new_plain(*unwrap(input), *unwrap(weight), unwrap_optional(bias), settings,
                           {output_padding, output_padding_len_}));
  });
}

EC_API int32_t ec_aoti_torch_cpu_ec_convolution(AtenTensorHandle x, AtenTensorHandle w_packed,
                                                AtenTensorHandle* bias, AtenTensorHandle* residual,
                                                const int64_t* kernel, int64_t kernel_len,
                                                const int64_t* stride, int64_t stride_len,
                                                const int64_t* padding, int64_t padding_len,
                                                const int64_t* dilation, int64_t dilation_len,
                                                int32_t transposed, int64_t groups, int64_t n,
                                                int64_t act, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_convolution", [&] {
    const Tensor &input = *unwrap(x), &packed = *unwrap(w_packed);
    require_float32(input, "x");
    require_float32(packed, "w_packed");
    Epilogue epilogue;
    set_activation(act, &epilogue);
    Convolution c = describe(input, {{kernel, kernel_len},
                                     {stride, stride_len},
                                     {padding, padding_len},
                                     {dilation, dilation_len},
                                     transposed != 0,
                                     groups,
                                     n});
    // The number of elements tells how they are packed.
    for (const int64_t tile : {2, 4}) {
      Convolution tiled = c;
      tiled.tile = tile;
      if (c.has_tiles() && packed.numel() == tiled.packed_elements()) c.tile = tile;
    }
    if (packed.numel() != c.packed_elements() || !is_contiguous(packed)) {
      fail("w_packed has %ld elements, packed weights of this convolution have %ld", packed.numel(),
           c.packed_elements());
    }
    OwnedTensor holder;
    epilogue.bias = vector_of(unwrap_optional(bias), n, "bias", &holder);
    const Tensor* const addend = unwrap_optional(residual);
    const WorkTimer timer(Work::kConvolution, work_of(c, addend != nullptr));
    *ret = wrap(new_convolution(c, input, packed.as<float>(), addend, epilogue));
  });
}

}  // namespace ec
