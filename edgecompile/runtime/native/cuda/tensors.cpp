// Tensors on the GPU: what allocates, copies and fills, of AOTInductor's C ABI, and its streams.
#include <cstdint>

#include "cuda/run.h"
#include "shim/device.h"
#include "shim/handles.h"

namespace ec {

const Device kDevice = {1, 0, "the first GPU"};

// Called where a check of compiled code fails; there are no parallel regions here.
void abandon_region(const char*) {}

namespace {

Tensor* like(const Tensor& source, const int64_t* strides) {
  return cuda::new_device_tensor(source.dims, source.sizes, strides, source.dtype);
}

}  // namespace

EC_API int32_t ec_aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes_ptr,
                                           const int64_t* strides_ptr, int32_t dtype,
                                           int32_t device_type, int32_t /*device_index*/,
                                           AtenTensorHandle* ret_new_tensor) {
  return guarded("aoti_torch_empty_strided", [&] {
    check_device(device_type);
    *ret_new_tensor = wrap(cuda::new_device_tensor(ndim, sizes_ptr, strides_ptr, dtype));
  });
}

// With the bytes between the elements, as torch has it. Inputs that aren't aligned come here.
EC_API int32_t ec_aoti_torch_clone_preserve_strides(AtenTensorHandle self, AtenTensorHandle* ret) {
  return guarded("aoti_torch_clone_preserve_strides", [&] {
    const Tensor& source = *unwrap(self);
    OwnedTensor result(like(source, source.strides));
    cuda::copy_bytes(result->data, source.data, result->storage->bytes);
    *ret = wrap(result.release());
  });
}

EC_API int32_t ec_aoti_torch_clone(AtenTensorHandle self, AtenTensorHandle* ret) {
  return guarded("aoti_torch_clone", [&] {
    const Tensor& source = *unwrap(self);
    if (!is_contiguous(source)) fail("a copy of a strided tensor has no kernel");
    int64_t strides[kMaxDims];
    contiguous_strides(source.dims, source.sizes, strides);
    OwnedTensor result(like(source, strides));
    cuda::copy_bytes(result->data, source.data, result->storage->bytes);
    *ret = wrap(result.release());
  });
}

EC_API int32_t ec_aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle src,
                                   int32_t /*non_blocking*/) {
  return guarded("aoti_torch_copy_", [&] {
    const Tensor &target = *unwrap(self), &source = *unwrap(src);
    bool alike = target.dtype == source.dtype && target.dims == source.dims;
    for (int d = 0; alike && d < target.dims; ++d) alike = target.sizes[d] == source.sizes[d];
    if (!alike || !is_contiguous(target) || !is_contiguous(source)) {
      fail("a copy between tensors of other types, sizes or strides has no kernel");
    }
    cuda::copy_bytes(target.data, source.data, source.numel() * element_size(source.dtype));
  });
}

EC_API int32_t ec_aoti_torch_zero_(AtenTensorHandle self) {
  return guarded("aoti_torch_zero_", [&] {
    const Tensor& target = *unwrap(self);
    if (!is_contiguous(target)) fail("filling a strided tensor has no kernel");
    const cuda::Run& run = cuda::current_run();
    const int64_t bytes = target.numel() * element_size(target.dtype);
    if (run.rehearsed || bytes == 0) return;
    cuda::check(cuda::driver().fill(reinterpret_cast<cuda::Address>(target.data), 0,
                                    static_cast<size_t>(bytes), run.stream),
                "filling with zeros");
  });
}

// A run has one stream and one device from its beginning to its end.
EC_API int32_t ec_aoti_torch_create_cuda_stream_guard(void* stream, int32_t /*device_index*/,
                                                      void** ret_guard) {
  return guarded("aoti_torch_create_cuda_stream_guard", [&] {
    if (stream != cuda::current_run().stream) fail("a run can't change its stream");
    *ret_guard = stream;
  });
}
EC_API int32_t ec_aoti_torch_delete_cuda_stream_guard(void* /*guard*/) { return kSuccess; }
EC_API int32_t ec_aoti_torch_get_current_cuda_stream(int32_t /*device_index*/, void** ret_stream) {
  return guarded("aoti_torch_get_current_cuda_stream",
                 [&] { *ret_stream = cuda::current_run().stream; });
}
EC_API int32_t ec_aoti_torch_create_cuda_guard(int32_t device_index, void** ret_guard) {
  return guarded("aoti_torch_create_cuda_guard", [&] {
    if (device_index != kDevice.index) fail("device %d was asked for", device_index);
    *ret_guard = nullptr;
  });
}
EC_API int32_t ec_aoti_torch_delete_cuda_guard(void* /*guard*/) { return kSuccess; }
EC_API int32_t ec_aoti_torch_cuda_guard_set_index(void* /*guard*/, int32_t device_index) {
  return guarded("aoti_torch_cuda_guard_set_index", [&] {
    if (device_index != kDevice.index) fail("device %d was asked for", device_index);
  });
}

}  // namespace ec
