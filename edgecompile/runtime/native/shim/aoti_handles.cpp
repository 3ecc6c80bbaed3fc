// Tensor handles of AOTInductor's C ABI: what needs no look at the elements, on any device.
#include "shim/device.h"
#include "shim/handles.h"

namespace ec {
namespace {

constexpr int32_t kStrided = 0;  // c10's Layout

int64_t checked_dimension(const Tensor& tensor, int64_t d) {
  const int64_t dims = tensor.dims;
  if (d < -dims || d >= dims) {
    fail("dimension %ld of a tensor with %ld", d, dims);
  }
  return d < 0 ? d + dims : d;
}

}  // namespace

void check_device(int32_t type) {
  if (type != kDevice.type) {
    fail("device type %d was asked for, only %s (%d) exists", type, kDevice.name, kDevice.type);
  }
}

EC_API int32_t ec_aoti_torch_delete_tensor_object(AtenTensorHandle tensor) {
  free_tensor(reinterpret_cast<Tensor*>(tensor));
  return kSuccess;
}

EC_API int32_t ec_aoti_torch_new_tensor_handle(AtenTensorHandle orig_handle,
                                               AtenTensorHandle* new_handle) {
  return guarded("aoti_torch_new_tensor_handle",
                 [&] { *new_handle = wrap(new_alias(*unwrap(orig_handle))); });
}

EC_API int32_t ec_aoti_torch_new_uninitialized_tensor(AtenTensorHandle* ret) {
  return guarded("aoti_torch_new_uninitialized_tensor", [&] { *ret = wrap(new_undefined()); });
}

EC_API int32_t ec_aoti_torch_assign_tensors(AtenTensorHandle src, AtenTensorHandle dst) {
  return guarded("aoti_torch_assign_tensors", [&] { assign(*unwrap(src), unwrap(dst)); });
}

EC_API int32_t ec_aoti_torch_assign_tensors_out(AtenTensorHandle src, AtenTensorHandle* ret_dst) {
  return guarded("aoti_torch_assign_tensors_out",
                 [&] { *ret_dst = wrap(new_alias(*unwrap(src))); });
}

// What generated code asks of a tensor `t`.
#define EC_DEFINE_GETTER(name, type, answer)                                \
  EC_API int32_t ec_aoti_torch_##name(AtenTensorHandle tensor, type* ret) { \
    return guarded("aoti_torch_" #name, [&] {                               \
      [[maybe_unused]] Tensor& t = *unwrap(tensor);                         \
      *ret = answer;                                                        \
    });                                                                     \
  }
// ATen gives null for an empty tensor, and generated code may compare.
EC_DEFINE_GETTER(get_data_ptr, void*, t.numel() == 0 ? nullptr : t.data)
EC_DEFINE_GETTER(get_storage_size, int64_t, t.storage == nullptr ? 0 : t.storage->bytes)
EC_DEFINE_GETTER(get_storage_numel, int64_t,
                 t.storage == nullptr ? 0 : t.storage->bytes / element_size(t.dtype))
EC_DEFINE_GETTER(get_storage_offset, int64_t, t.offset)
EC_DEFINE_GETTER(get_dim, int64_t, t.dims)
EC_DEFINE_GETTER(get_numel, int64_t, t.numel())
EC_DEFINE_GETTER(get_sizes, int64_t*, t.sizes)
EC_DEFINE_GETTER(get_strides, int64_t*, t.strides)
EC_DEFINE_GETTER(get_dtype, int32_t, t.dtype)
EC_DEFINE_GETTER(get_device_type, int32_t, kDevice.type)
EC_DEFINE_GETTER(get_device_index, int32_t, kDevice.index)
EC_DEFINE_GETTER(get_layout, int32_t, kStrided)
EC_DEFINE_GETTER(is_contiguous, bool, is_contiguous(t))
EC_DEFINE_GETTER(is_defined, bool, t.storage != nullptr)
#undef EC_DEFINE_GETTER

EC_API int32_t ec_aoti_torch_get_size(AtenTensorHandle tensor, int64_t d, int64_t* ret_size) {
  return guarded("aoti_torch_get_size", [&] {
    const Tensor& t = *unwrap(tensor);
    *ret_size = t.sizes[checked_dimension(t, d)];
  });
}

EC_API int32_t ec_aoti_torch_get_stride(AtenTensorHandle tensor, int64_t d, int64_t* ret_stride) {
  return guarded("aoti_torch_get_stride", [&] {
    const Tensor& t = *unwrap(tensor);
    *ret_stride = t.strides[checked_dimension(t, d)];
  });
}

EC_API int32_t ec_aoti_torch_create_tensor_from_blob(void* data, int64_t ndim,
                                                     const int64_t* sizes_ptr,
                                                     const int64_t* strides_ptr,
                                                     int64_t storage_offset, int32_t dtype,
                                                     int32_t device_type, int32_t /*device_index*/,
                                                     AtenTensorHandle* ret) {
  return guarded("aoti_torch_create_tensor_from_blob", [&] {
    check_device(device_type);
    *ret = wrap(new_borrowed(data, ndim, sizes_ptr, strides_ptr, storage_offset, dtype));
  });
}

EC_API int32_t ec_aoti_torch_create_tensor_from_blob_v2(
    void* data, int64_t ndim, const int64_t* sizes_ptr, const int64_t* strides_ptr,
    int64_t storage_offset, int32_t dtype, int32_t device_type, int32_t device_index,
    AtenTensorHandle* ret, int32_t layout, const uint8_t* /*opaque_metadata*/,
    int64_t opaque_metadata_size) {
  if (layout != kStrided || opaque_metadata_size != 0) {
    return guarded("aoti_torch_create_tensor_from_blob_v2",
                   [&] { fail("layout %d was asked for, only strided tensors exist", layout); });
  }
  return ec_aoti_torch_create_tensor_from_blob(data, ndim, sizes_ptr, strides_ptr, storage_offset,
                                               dtype, device_type, device_index, ret);
}

EC_API int32_t ec_aoti_torch__alloc_from_pool(AtenTensorHandle self, int64_t offset_bytes,
                                              int32_t dtype, int64_t ndim, const int64_t* sizes_ptr,
                                              const int64_t* strides_ptr,
                                              AtenTensorHandle* ret_new_tensor) {
  return guarded("aoti_torch__alloc_from_pool", [&] {
    const int64_t item = element_size(dtype);
    if (offset_bytes % item != 0) {
      fail("offset of %ld bytes is no multiple of the element size %ld", offset_bytes, item);
    }
    *ret_new_tensor =
        wrap(new_view(*unwrap(self), ndim, sizes_ptr, strides_ptr, offset_bytes / item, dtype));
  });
}

// storage_offset counts from the offset that self has already.
EC_API int32_t ec_aoti_torch__reinterpret_tensor(AtenTensorHandle self, int64_t ndim,
                                                 const int64_t* sizes_ptr,
                                                 const int64_t* strides_ptr, int64_t storage_offset,
                                                 AtenTensorHandle* ret_new_tensor) {
  return guarded("aoti_torch__reinterpret_tensor", [&] {
    const Tensor& base = *unwrap(self);
    *ret_new_tensor = wrap(
        new_view(base, ndim, sizes_ptr, strides_ptr, base.offset + storage_offset, base.dtype));
  });
}

EC_API int32_t ec_aoti_torch_as_strided(AtenTensorHandle self, const int64_t* sizes_ptr,
                                        const int64_t* strides_ptr, AtenTensorHandle* ret) {
  return guarded("aoti_torch_as_strided", [&] {
    const Tensor& base = *unwrap(self);
    *ret = wrap(new_view(base, base.dims, sizes_ptr, strides_ptr, base.offset, base.dtype));
  });
}

}  // namespace ec
