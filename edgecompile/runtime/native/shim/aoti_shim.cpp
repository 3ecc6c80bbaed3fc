// Tensor handles of AOTInductor's C ABI.
#include <cstring>

#include "shim/aoti_abi.h"
#include "tensors/copies.h"

using ec::fail;
using ec::guarded;
using ec::kMaxDims;
using ec::Tensor;
using ec::unwrap;
using ec::wrap;

namespace {

void check_cpu(int32_t device_type) {
  if (device_type != 0) fail("device type %d was asked for, only the CPU (0) exists", device_type);
}

int64_t checked_dimension(const Tensor& tensor, int64_t d) {
  const int64_t dims = tensor.dims;
  if (d < -dims || d >= dims) {
    fail("dimension %lld of a tensor with %lld", static_cast<long long>(d),
         static_cast<long long>(dims));
  }
  return d < 0 ? d + dims : d;
}

}  // namespace

AOTITorchError ec_aoti_torch_delete_tensor_object(AtenTensorHandle tensor) {
  ec::free_tensor(reinterpret_cast<Tensor*>(tensor));
  return ec::kSuccess;
}

AOTITorchError ec_aoti_torch_new_tensor_handle(AtenTensorHandle orig_handle,
                                               AtenTensorHandle* new_handle) {
  return guarded("aoti_torch_new_tensor_handle",
                 [&] { *new_handle = wrap(ec::new_alias(*unwrap(orig_handle))); });
}

AOTITorchError ec_aoti_torch_new_uninitialized_tensor(AtenTensorHandle* ret) {
  return guarded("aoti_torch_new_uninitialized_tensor", [&] { *ret = wrap(ec::new_undefined()); });
}

AOTITorchError ec_aoti_torch_assign_tensors(AtenTensorHandle src, AtenTensorHandle dst) {
  return guarded("aoti_torch_assign_tensors", [&] { ec::assign(*unwrap(src), unwrap(dst)); });
}

AOTITorchError ec_aoti_torch_assign_tensors_out(AtenTensorHandle src, AtenTensorHandle* ret_dst) {
  return guarded("aoti_torch_assign_tensors_out",
                 [&] { *ret_dst = wrap(ec::new_alias(*unwrap(src))); });
}

AOTITorchError ec_aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** ret_data_ptr) {
  return guarded("aoti_torch_get_data_ptr", [&] {
    const Tensor& t = *unwrap(tensor);
    // ATen gives null for an empty tensor, and generated code may compare.
    *ret_data_ptr = t.numel() == 0 ? nullptr : t.data;
  });
}

AOTITorchError ec_aoti_torch_get_storage_size(AtenTensorHandle tensor, int64_t* ret_size) {
  return guarded("aoti_torch_get_storage_size", [&] {
    const Tensor& t = *unwrap(tensor);
    *ret_size = t.storage == nullptr ? 0 : t.storage->bytes;
  });
}

AOTITorchError ec_aoti_torch_get_storage_numel(AtenTensorHandle tensor, int64_t* ret_numel) {
  return guarded("aoti_torch_get_storage_numel", [&] {
    const Tensor& t = *unwrap(tensor);
    *ret_numel = t.storage == nullptr ? 0 : t.storage->bytes / ec::element_size(t.dtype);
  });
}

AOTITorchError ec_aoti_torch_get_storage_offset(AtenTensorHandle tensor,
                                                int64_t* ret_storage_offset) {
  return guarded("aoti_torch_get_storage_offset",
                 [&] { *ret_storage_offset = unwrap(tensor)->offset; });
}

AOTITorchError ec_aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* ret_dim) {
  return guarded("aoti_torch_get_dim", [&] { *ret_dim = unwrap(tensor)->dims; });
}

AOTITorchError ec_aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* ret_numel) {
  return guarded("aoti_torch_get_numel", [&] { *ret_numel = unwrap(tensor)->numel(); });
}

AOTITorchError ec_aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** ret_sizes) {
  return guarded("aoti_torch_get_sizes", [&] { *ret_sizes = unwrap(tensor)->sizes; });
}

AOTITorchError ec_aoti_torch_get_size(AtenTensorHandle tensor, int64_t d, int64_t* ret_size) {
  return guarded("aoti_torch_get_size", [&] {
    const Tensor& t = *unwrap(tensor);
    *ret_size = t.sizes[checked_dimension(t, d)];
  });
}

AOTITorchError ec_aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** ret_strides) {
  return guarded("aoti_torch_get_strides", [&] { *ret_strides = unwrap(tensor)->strides; });
}

AOTITorchError ec_aoti_torch_get_stride(AtenTensorHandle tensor, int64_t d, int64_t* ret_stride) {
  return guarded("aoti_torch_get_stride", [&] {
    const Tensor& t = *unwrap(tensor);
    *ret_stride = t.strides[checked_dimension(t, d)];
  });
}

AOTITorchError ec_aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* ret_dtype) {
  return guarded("aoti_torch_get_dtype", [&] { *ret_dtype = unwrap(tensor)->dtype; });
}

AOTITorchError ec_aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* ret_device_type) {
  return guarded("aoti_torch_get_device_type", [&] {
    unwrap(tensor);
    *ret_device_type = ec_aoti_torch_device_type_cpu();
  });
}

AOTITorchError ec_aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* ret_device_index) {
  return guarded("aoti_torch_get_device_index", [&] {
    unwrap(tensor);
    *ret_device_index = -1;  // as c10: a CPU has no index
  });
}

AOTITorchError ec_aoti_torch_get_layout(AtenTensorHandle tensor, int32_t* ret_layout) {
  return guarded("aoti_torch_get_layout", [&] {
    unwrap(tensor);
    *ret_layout = ec_aoti_torch_layout_strided();
  });
}

AOTITorchError ec_aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* ret_is_contiguous) {
  return guarded("aoti_torch_is_contiguous",
                 [&] { *ret_is_contiguous = ec::is_contiguous(*unwrap(tensor)); });
}

AOTITorchError ec_aoti_torch_is_defined(AtenTensorHandle tensor, bool* ret_is_defined) {
  return guarded("aoti_torch_is_defined",
                 [&] { *ret_is_defined = unwrap(tensor)->storage != nullptr; });
}

AOTITorchError ec_aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes_ptr,
                                           const int64_t* strides_ptr, int32_t dtype,
                                           int32_t device_type, int32_t /*device_index*/,
                                           AtenTensorHandle* ret_new_tensor) {
  return guarded("aoti_torch_empty_strided", [&] {
    check_cpu(device_type);
    *ret_new_tensor = wrap(ec::new_empty(ndim, sizes_ptr, strides_ptr, dtype));
  });
}

AOTITorchError ec_aoti_torch_create_tensor_from_blob(void* data, int64_t ndim,
                                                     const int64_t* sizes_ptr,
                                                     const int64_t* strides_ptr,
                                                     int64_t storage_offset, int32_t dtype,
                                                     int32_t device_type, int32_t /*device_index*/,
                                                     AtenTensorHandle* ret) {
  return guarded("aoti_torch_create_tensor_from_blob", [&] {
    check_cpu(device_type);
    *ret = wrap(ec::new_borrowed(data, ndim, sizes_ptr, strides_ptr, storage_offset, dtype));
  });
}

AOTITorchError ec_aoti_torch_create_tensor_from_blob_v2(
    void* data, int64_t ndim, const int64_t* sizes_ptr, const int64_t* strides_ptr,
    int64_t storage_offset, int32_t dtype, int32_t device_type, int32_t device_index,
    AtenTensorHandle* ret, int32_t layout, const uint8_t* /*opaque_metadata*/,
    int64_t opaque_metadata_size) {
  if (layout != ec_aoti_torch_layout_strided() || opaque_metadata_size != 0) {
    return guarded("aoti_torch_create_tensor_from_blob_v2",
                   [&] { fail("layout %d was asked for, only strided tensors exist", layout); });
  }
  return ec_aoti_torch_create_tensor_from_blob(data, ndim, sizes_ptr, strides_ptr, storage_offset,
                                               dtype, device_type, device_index, ret);
}

AOTITorchError ec_aoti_torch__alloc_from_pool(AtenTensorHandle self, int64_t offset_bytes,
                                              int32_t dtype, int64_t ndim, const int64_t* sizes_ptr,
                                              const int64_t* strides_ptr,
                                              AtenTensorHandle* ret_new_tensor) {
  return guarded("aoti_torch__alloc_from_pool", [&] {
    const int64_t item = ec::element_size(dtype);
    if (offset_bytes % item != 0) {
      fail("offset of %lld bytes is no multiple of the element size %lld",
           static_cast<long long>(offset_bytes), static_cast<long long>(item));
    }
    *ret_new_tensor =
        wrap(ec::new_view(*unwrap(self), ndim, sizes_ptr, strides_ptr, offset_bytes / item, dtype));
  });
}

AOTITorchError ec_aoti_torch__reinterpret_tensor(AtenTensorHandle self, int64_t ndim,
                                                 const int64_t* sizes_ptr,
                                                 const int64_t* strides_ptr, int64_t storage_offset,
                                                 AtenTensorHandle* ret_new_tensor) {
  return guarded("aoti_torch__reinterpret_tensor", [&] {
    const Tensor& base = *unwrap(self);
    *ret_new_tensor = wrap(
        ec::new_view(base, ndim, sizes_ptr, strides_ptr, base.offset + storage_offset, base.dtype));
  });
}

AOTITorchError ec_aoti_torch_as_strided(AtenTensorHandle self, const int64_t* sizes_ptr,
                                        const int64_t* strides_ptr, AtenTensorHandle* ret) {
  return guarded("aoti_torch_as_strided", [&] {
    const Tensor& base = *unwrap(self);
    *ret = wrap(ec::new_view(base, base.dims, sizes_ptr, strides_ptr, base.offset, base.dtype));
  });
}

AOTITorchError ec_aoti_torch_clone(AtenTensorHandle self, AtenTensorHandle* ret) {
  return guarded("aoti_torch_clone", [&] { *ret = wrap(ec::new_clone(*unwrap(self))); });
}

AOTITorchError ec_aoti_torch_cpu_ec_copy(AtenTensorHandle x, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_copy",
                 [&] { *ret = wrap(ec::new_contiguous_copy(*unwrap(x))); });
}

AOTITorchError ec_aoti_torch_clone_preserve_strides(AtenTensorHandle self, AtenTensorHandle* ret) {
  return guarded("aoti_torch_clone_preserve_strides", [&] {
    const Tensor& source = *unwrap(self);
    ec::OwnedTensor result(ec::new_empty(source.dims, source.sizes, source.strides, source.dtype));
    // The bytes between the elements come along, as torch has it: overlapping views stay equal.
    const int64_t bytes = result->storage->bytes;
    if (bytes > 0) std::memcpy(result->data, source.data, static_cast<size_t>(bytes));
    *ret = wrap(result.release());
  });
}

AOTITorchError ec_aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle src,
                                   int32_t /*non_blocking*/) {
  return guarded("aoti_torch_copy_", [&] { ec::copy_elements(*unwrap(src), unwrap(self)); });
}

AOTITorchError ec_aoti_torch_tensor_copy_(AtenTensorHandle src, AtenTensorHandle dst) {
  return guarded("aoti_torch_tensor_copy_", [&] { ec::copy_elements(*unwrap(src), unwrap(dst)); });
}

AOTITorchError ec_aoti_torch_zero_(AtenTensorHandle self) {
  return guarded("aoti_torch_zero_", [&] { ec::fill_elements(0.0, unwrap(self)); });
}

AOTITorchError ec_aoti_torch_cpu_fill__Scalar(AtenTensorHandle self, double value) {
  return guarded("aoti_torch_cpu_fill__Scalar", [&] { ec::fill_elements(value, unwrap(self)); });
}

AOTITorchError ec_aoti_torch_aten_fill__Scalar(AtenTensorHandle self, double value) {
  return ec_aoti_torch_cpu_fill__Scalar(self, value);
}
