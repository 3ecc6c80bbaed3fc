// What compiled models call: AOTInductor's C ABI (torch/csrc/inductor/aoti_torch/c/shim.h and the
// generated c_shim_cpu.h of torch 2.13), each function with the prefix ec_. A test compiles this
// header beside torch's and compares every type.
//
// Handles returned through a pointer are new references, to be freed with
// ec_aoti_torch_delete_tensor_object; pointers to sizes, strides and data are borrowed from the
// handle. Optional tensors are pointers to a handle, null if absent. On failure a function returns
// 1, leaves its results alone and sets the thread's last error (ec_last_error).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/export.h"
#include "tensors/tensor.h"

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
using AOTITorchError = int32_t;

namespace ec {

inline Tensor* unwrap(AtenTensorHandle handle) {
  if (handle == nullptr) fail("tensor handle is null");
  return reinterpret_cast<Tensor*>(handle);
}
inline Tensor* unwrap_optional(const AtenTensorHandle* handle) {
  return handle == nullptr || *handle == nullptr ? nullptr : unwrap(*handle);
}
inline AtenTensorHandle wrap(Tensor* tensor) { return reinterpret_cast<AtenTensorHandle>(tensor); }

}  // namespace ec

// Constants (aoti_types.cpp).
// clang-format off: it never comes to rest on this list.
#define EC_FOR_EACH_DTYPE(X) \
  X(uint8)                              \
  X(int8)                               \
  X(int16)                              \
  X(int32)                              \
  X(int64)                              \
  X(uint16)                             \
  X(uint32)                             \
  X(uint64)                             \
  X(float16)                            \
  X(bfloat16)                           \
  X(float32)                            \
  X(float64)                            \
  X(bool)                               \
  X(complex32)                          \
  X(complex64)                          \
  X(complex128)                         \
  X(float8_e5m2)                        \
  X(float8_e4m3fn)                      \
  X(float8_e5m2fnuz)                    \
  X(float8_e4m3fnuz)                    \
  X(float8_e8m0fnu)                     \
  X(float4_e2m1fn_x2)
// clang-format on
#define EC_DECLARE_DTYPE(name) EC_API int32_t ec_aoti_torch_dtype_##name();
EC_FOR_EACH_DTYPE(EC_DECLARE_DTYPE)
#undef EC_DECLARE_DTYPE
EC_API size_t ec_aoti_torch_dtype_element_size(int32_t dtype);  // 0 for an unknown code
EC_API int32_t ec_aoti_torch_device_type_cpu();
EC_API int32_t ec_aoti_torch_device_type_cuda();
EC_API int32_t ec_aoti_torch_device_type_meta();
EC_API int32_t ec_aoti_torch_layout_strided();
EC_API int32_t ec_aoti_torch_memory_format_contiguous_format();
EC_API int32_t ec_aoti_torch_memory_format_channels_last();
EC_API int32_t ec_aoti_torch_memory_format_channels_last_3d();
EC_API int32_t ec_aoti_torch_memory_format_preserve_format();

// Process state (aoti_types.cpp). Gradients don't exist here: the mode is remembered, no more.
EC_API bool ec_aoti_torch_grad_mode_is_enabled();
EC_API void ec_aoti_torch_grad_mode_set_enabled(bool enabled);
// Not torch's: called by model/support.cpp, which is part of every model library and throws the
// returned message. Inside an OpenMP region it does not return (openmp.h).
EC_API const char* ec_check_failed(const char* func, uint32_t line, const char* msg);
EC_API void ec_aoti_torch_check(bool cond, const char* func, const char* file, uint32_t line,
                                const char* msg);
EC_API void ec_aoti_torch_warn(const char* func, const char* file, uint32_t line, const char* msg);

// Handles (aoti_shim.cpp).
EC_API AOTITorchError ec_aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
EC_API AOTITorchError ec_aoti_torch_new_tensor_handle(AtenTensorHandle orig_handle,
                                                      AtenTensorHandle* new_handle);
EC_API AOTITorchError ec_aoti_torch_new_uninitialized_tensor(AtenTensorHandle* ret);
EC_API AOTITorchError ec_aoti_torch_assign_tensors(AtenTensorHandle src, AtenTensorHandle dst);
EC_API AOTITorchError ec_aoti_torch_assign_tensors_out(AtenTensorHandle src,
                                                       AtenTensorHandle* ret_dst);
EC_API AOTITorchError ec_aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** ret_data_ptr);
EC_API AOTITorchError ec_aoti_torch_get_storage_size(AtenTensorHandle tensor, int64_t* ret_size);
EC_API AOTITorchError ec_aoti_torch_get_storage_numel(AtenTensorHandle tensor, int64_t* ret_numel);
EC_API AOTITorchError ec_aoti_torch_get_storage_offset(AtenTensorHandle tensor,
                                                       int64_t* ret_storage_offset);
EC_API AOTITorchError ec_aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* ret_dim);
EC_API AOTITorchError ec_aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* ret_numel);
EC_API AOTITorchError ec_aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** ret_sizes);
EC_API AOTITorchError ec_aoti_torch_get_size(AtenTensorHandle tensor, int64_t d, int64_t* ret_size);
EC_API AOTITorchError ec_aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** ret_strides);
EC_API AOTITorchError ec_aoti_torch_get_stride(AtenTensorHandle tensor, int64_t d,
                                               int64_t* ret_stride);
EC_API AOTITorchError ec_aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* ret_dtype);
EC_API AOTITorchError ec_aoti_torch_get_device_type(AtenTensorHandle tensor,
                                                    int32_t* ret_device_type);
EC_API AOTITorchError ec_aoti_torch_get_device_index(AtenTensorHandle tensor,
                                                     int32_t* ret_device_index);
EC_API AOTITorchError ec_aoti_torch_get_layout(AtenTensorHandle tensor, int32_t* ret_layout);
EC_API AOTITorchError ec_aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* ret_is_contiguous);
EC_API AOTITorchError ec_aoti_torch_is_defined(AtenTensorHandle tensor, bool* ret_is_defined);
EC_API AOTITorchError ec_aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes_ptr,
                                                  const int64_t* strides_ptr, int32_t dtype,
                                                  int32_t device_type, int32_t device_index,
                                                  AtenTensorHandle* ret_new_tensor);
EC_API AOTITorchError ec_aoti_torch_create_tensor_from_blob(
    void* data, int64_t ndim, const int64_t* sizes_ptr, const int64_t* strides_ptr,
    int64_t storage_offset, int32_t dtype, int32_t device_type, int32_t device_index,
    AtenTensorHandle* ret);
EC_API AOTITorchError ec_aoti_torch_create_tensor_from_blob_v2(
    void* data, int64_t ndim, const int64_t* sizes_ptr, const int64_t* strides_ptr,
    int64_t storage_offset, int32_t dtype, int32_t device_type, int32_t device_index,
    AtenTensorHandle* ret, int32_t layout, const uint8_t* opaque_metadata,
    int64_t opaque_metadata_size);
EC_API AOTITorchError ec_aoti_torch__alloc_from_pool(AtenTensorHandle self, int64_t offset_bytes,
                                                     int32_t dtype, int64_t ndim,
                                                     const int64_t* sizes_ptr,
                                                     const int64_t* strides_ptr,
                                                     AtenTensorHandle* ret_new_tensor);
// storage_offset counts from the offset that self has already.
EC_API AOTITorchError ec_aoti_torch__reinterpret_tensor(AtenTensorHandle self, int64_t ndim,
                                                        const int64_t* sizes_ptr,
                                                        const int64_t* strides_ptr,
                                                        int64_t storage_offset,
                                                        AtenTensorHandle* ret_new_tensor);
EC_API AOTITorchError ec_aoti_torch_as_strided(AtenTensorHandle self, const int64_t* sizes_ptr,
                                               const int64_t* strides_ptr, AtenTensorHandle* ret);
EC_API AOTITorchError ec_aoti_torch_clone(AtenTensorHandle self, AtenTensorHandle* ret);
EC_API AOTITorchError ec_aoti_torch_clone_preserve_strides(AtenTensorHandle self,
                                                           AtenTensorHandle* ret);
EC_API AOTITorchError ec_aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle src,
                                          int32_t non_blocking);
EC_API AOTITorchError ec_aoti_torch_tensor_copy_(AtenTensorHandle src, AtenTensorHandle dst);
EC_API AOTITorchError ec_aoti_torch_zero_(AtenTensorHandle self);
EC_API AOTITorchError ec_aoti_torch_cpu_fill__Scalar(AtenTensorHandle self, double value);
EC_API AOTITorchError ec_aoti_torch_aten_fill__Scalar(AtenTensorHandle self, double value);

// Scalars (aoti_scalars.cpp).
// clang-format off: as above.
#define EC_FOR_EACH_SCALAR(X) \
  X(float32, float) \
  X(float64, double) \
  X(uint8, uint8_t) \
  X(uint16, uint16_t) \
  X(uint32, uint32_t) \
  X(uint64, uint64_t) \
  X(int8, int8_t) \
  X(int16, int16_t) \
  X(int32, int32_t) \
  X(int64, int64_t) \
  X(bool, bool)
// clang-format on
#define EC_DECLARE_SCALAR(name, type)                                                        \
  EC_API AOTITorchError ec_aoti_torch_item_##name(AtenTensorHandle tensor, type* ret_value); \
  EC_API AOTITorchError ec_aoti_torch_scalar_to_tensor_##name(type value,                    \
                                                              AtenTensorHandle* ret_new_tensor);
EC_FOR_EACH_SCALAR(EC_DECLARE_SCALAR)
#undef EC_DECLARE_SCALAR

// Matrix products (aoti_kernels.cpp), float32.
EC_API AOTITorchError ec_aoti_torch_cpu_addmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                                  AtenTensorHandle mat1, AtenTensorHandle mat2,
                                                  double beta, double alpha);
EC_API AOTITorchError ec_aoti_torch_cpu_mm_out(AtenTensorHandle out, AtenTensorHandle self,
                                               AtenTensorHandle mat2);
EC_API AOTITorchError ec_aoti_torch_cpu_bmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                                AtenTensorHandle mat2);
EC_API AOTITorchError ec_aoti_torch_cpu_baddbmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                                    AtenTensorHandle batch1,
                                                    AtenTensorHandle batch2, double beta,
                                                    double alpha);
// act(x · W + bias) + residual over packed weights (gemm.h), x [..., K], result [..., n] row-major.
EC_API AOTITorchError ec_aoti_torch_cpu_ec_linear(AtenTensorHandle x, AtenTensorHandle w_packed,
                                                  AtenTensorHandle* bias,
                                                  AtenTensorHandle* residual, int64_t n,
                                                  int64_t act, AtenTensorHandle* ret);

// Convolutions of one to three dimensions (aoti_convolution.cpp). torch's own takes any floating
// type and plain weights, and its result has the strides that torch's has.
EC_API AOTITorchError ec_aoti_torch_cpu_convolution(
    AtenTensorHandle input, AtenTensorHandle weight, AtenTensorHandle* bias, const int64_t* stride,
    int64_t stride_len_, const int64_t* padding, int64_t padding_len_, const int64_t* dilation,
    int64_t dilation_len_, int32_t transposed, const int64_t* output_padding,
    int64_t output_padding_len_, int64_t groups, AtenTensorHandle* ret0);
// act(convolution(x) + bias) over packed weights (convolution.h), float32, with n channels out. One
// element of kernel, stride and dilation for each spatial dimension; of padding two: all that is
// before the first elements, then all behind the last ones. A transposed convolution cuts as much
// off, or appends where it is negative. The result is channels-last.
EC_API AOTITorchError ec_aoti_torch_cpu_ec_convolution(
    AtenTensorHandle x, AtenTensorHandle w_packed, AtenTensorHandle* bias, const int64_t* kernel,
    int64_t kernel_len, const int64_t* stride, int64_t stride_len, const int64_t* padding,
    int64_t padding_len, const int64_t* dilation, int64_t dilation_len, int32_t transposed,
    int64_t groups, int64_t n, int64_t act, AtenTensorHandle* ret);

// Attention (aoti_attention.cpp), float32.
EC_API AOTITorchError ec_aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, double dropout_p,
    int32_t is_causal, AtenTensorHandle* attn_mask, double* scale, AtenTensorHandle* ret0,
    AtenTensorHandle* ret1);
// Result: sizes [B, H, Lq, Dv] with the strides of a transposed row-major [B, Lq, H, Dv].
EC_API AOTITorchError ec_aoti_torch_cpu_ec_attention(AtenTensorHandle q, AtenTensorHandle k,
                                                     AtenTensorHandle v, AtenTensorHandle* mask,
                                                     int32_t causal, double scale, int32_t narrow,
                                                     AtenTensorHandle* ret);
EC_API AOTITorchError ec_aoti_torch_cpu_ec_cached_attention(AtenTensorHandle q, AtenTensorHandle k,
                                                            AtenTensorHandle v,
                                                            AtenTensorHandle position,
                                                            int64_t window, double scale,
                                                            double softcap, AtenTensorHandle* ret);

// A row-major copy.
EC_API AOTITorchError ec_aoti_torch_cpu_ec_copy(AtenTensorHandle x, AtenTensorHandle* ret);

// Over the last dimension; weight and bias may be null. Result: as x, row-major.
EC_API AOTITorchError ec_aoti_torch_cpu_ec_layer_norm(AtenTensorHandle x, AtenTensorHandle* weight,
                                                      AtenTensorHandle* bias, double eps,
                                                      AtenTensorHandle* ret);

// Scans (aoti_scans.cpp).
EC_API AOTITorchError ec_aoti_torch_cpu_cumsum(AtenTensorHandle self, int64_t dim, int32_t* dtype,
                                               AtenTensorHandle* ret0);
EC_API AOTITorchError ec_aoti_torch_cpu_cumprod(AtenTensorHandle self, int64_t dim, int32_t* dtype,
                                                AtenTensorHandle* ret0);
EC_API AOTITorchError ec_aoti_torch_cpu_logcumsumexp(AtenTensorHandle self, int64_t dim,
                                                     AtenTensorHandle* ret0);
EC_API AOTITorchError ec_aoti_torch_cpu_cummax(AtenTensorHandle self, int64_t dim,
                                               AtenTensorHandle* ret0, AtenTensorHandle* ret1);
EC_API AOTITorchError ec_aoti_torch_cpu_cummin(AtenTensorHandle self, int64_t dim,
                                               AtenTensorHandle* ret0, AtenTensorHandle* ret1);

// Sorts (aoti_sorts.cpp): values and int64 indices.
EC_API AOTITorchError ec_aoti_torch_cpu_sort(AtenTensorHandle self, int64_t dim, int32_t descending,
                                             AtenTensorHandle* ret0, AtenTensorHandle* ret1);
EC_API AOTITorchError ec_aoti_torch_cpu_sort_stable(AtenTensorHandle self, int32_t* stable,
                                                    int64_t dim, int32_t descending,
                                                    AtenTensorHandle* ret0, AtenTensorHandle* ret1);
EC_API AOTITorchError ec_aoti_torch_cpu_topk(AtenTensorHandle self, int64_t k, int64_t dim,
                                             int32_t largest, int32_t sorted,
                                             AtenTensorHandle* ret0, AtenTensorHandle* ret1);
EC_API AOTITorchError ec_aoti_torch_cpu_kthvalue(AtenTensorHandle self, int64_t k, int64_t dim,
                                                 int32_t keepdim, AtenTensorHandle* ret0,
                                                 AtenTensorHandle* ret1);

// Counts and places (aoti_counts.cpp).
EC_API AOTITorchError ec_aoti_torch_cpu_histc(AtenTensorHandle self, int64_t bins, double min,
                                              double max, AtenTensorHandle* ret0);
EC_API AOTITorchError ec_aoti_torch_cpu_searchsorted_Tensor(
    AtenTensorHandle sorted_sequence, AtenTensorHandle self, int32_t out_int32, int32_t right,
    const char** side, AtenTensorHandle* sorter, AtenTensorHandle* ret0);
EC_API AOTITorchError ec_aoti_torch_cpu_bucketize_Tensor(AtenTensorHandle self,
                                                         AtenTensorHandle boundaries,
                                                         int32_t out_int32, int32_t right,
                                                         AtenTensorHandle* ret0);

// Scatters (aoti_scatters.cpp). Generated code doesn't look at the results of those that write to
// an output: a failure there makes the run's next call fail.
EC_API AOTITorchError ec_aoti_torch_cpu_scatter_src_out(AtenTensorHandle out, AtenTensorHandle self,
                                                        int64_t dim, AtenTensorHandle index,
                                                        AtenTensorHandle src);
EC_API AOTITorchError ec_aoti_torch_cpu_scatter_value_out(AtenTensorHandle out,
                                                          AtenTensorHandle self, int64_t dim,
                                                          AtenTensorHandle index, double value);
EC_API AOTITorchError ec_aoti_torch_cpu_scatter_reduce_two_out(
    AtenTensorHandle out, AtenTensorHandle self, int64_t dim, AtenTensorHandle index,
    AtenTensorHandle src, const char* reduce, int32_t include_self);
EC_API AOTITorchError ec_aoti_torch_cpu_masked_scatter(AtenTensorHandle self, AtenTensorHandle mask,
                                                       AtenTensorHandle source,
                                                       AtenTensorHandle* ret0);

// Reading and writing at indices and masks (aoti_indices.cpp). What is said of scatters goes for
// index_put_out.
EC_API AOTITorchError ec_aoti_torch_cpu_index_Tensor(AtenTensorHandle self,
                                                     const AtenTensorHandle** indices,
                                                     int64_t indices_len_, AtenTensorHandle* ret0);
EC_API AOTITorchError ec_aoti_torch_index_put_out(AtenTensorHandle out, AtenTensorHandle self,
                                                  const AtenTensorHandle* indices,
                                                  uint32_t num_indices, AtenTensorHandle values,
                                                  bool accumulate);
EC_API AOTITorchError ec_aoti_torch_cpu_nonzero(AtenTensorHandle self, AtenTensorHandle* ret0);

// Sums, means or maxima of rows of a table (aoti_embedding_bag.cpp).
EC_API AOTITorchError ec_aoti_torch_cpu__embedding_bag_forward_only(
    AtenTensorHandle weight, AtenTensorHandle indices, AtenTensorHandle offsets,
    int32_t scale_grad_by_freq, int64_t mode, int32_t sparse, AtenTensorHandle* per_sample_weights,
    int32_t include_last_offset, int64_t padding_idx, AtenTensorHandle* ret0,
    AtenTensorHandle* ret1, AtenTensorHandle* ret2, AtenTensorHandle* ret3);
EC_API AOTITorchError ec_aoti_torch_cpu__embedding_bag(
    AtenTensorHandle weight, AtenTensorHandle indices, AtenTensorHandle offsets,
    int32_t scale_grad_by_freq, int64_t mode, int32_t sparse, AtenTensorHandle* per_sample_weights,
    int32_t include_last_offset, int64_t padding_idx, AtenTensorHandle* ret0,
    AtenTensorHandle* ret1, AtenTensorHandle* ret2, AtenTensorHandle* ret3);

// Products of groups of rows, each with a matrix of its own (aoti_grouped.cpp), float32: rows
// offs[e-1]..offs[e] of x with matrix e; rows past the last offset give zero. w [E, K, N] of any
// strides, or E packed weights (gemm.h), one behind the other.
EC_API AOTITorchError ec_aoti_torch_cpu_ec_grouped_mm(AtenTensorHandle x, AtenTensorHandle w,
                                                      AtenTensorHandle offs, AtenTensorHandle* ret);
EC_API AOTITorchError ec_aoti_torch_cpu_ec_grouped_linear(AtenTensorHandle x,
                                                          AtenTensorHandle w_packed,
                                                          AtenTensorHandle offs, int64_t n,
                                                          AtenTensorHandle* ret);

// All steps of a recurrent layer in one direction (aoti_recurrence.cpp, recurrence.h), float32:
// gates [L, B, G*H], h0 and an LSTM's c0 [B, H]; results [L, B, H], the last h [B, H], and the last
// c, which is [0, H] for other kinds.
EC_API AOTITorchError ec_aoti_torch_cpu_ec_recurrence(
    AtenTensorHandle gates, AtenTensorHandle w_packed, AtenTensorHandle* bias, AtenTensorHandle h0,
    AtenTensorHandle* c0, int64_t kind, int32_t reverse, AtenTensorHandle* ret0,
    AtenTensorHandle* ret1, AtenTensorHandle* ret2);
