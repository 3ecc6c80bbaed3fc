// Tensors on the CPU: what allocates, copies and fills, of AOTInductor's C ABI.
#include <cstring>

#include "shim/device.h"
#include "shim/handles.h"
#include "tensors/copies.h"

namespace ec {

const Device kDevice = {0, -1, "the CPU"};  // as c10: a CPU has no index

EC_API int32_t ec_aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes_ptr,
                                           const int64_t* strides_ptr, int32_t dtype,
                                           int32_t device_type, int32_t /*device_index*/,
                                           AtenTensorHandle* ret_new_tensor) {
  return guarded("aoti_torch_empty_strided", [&] {
    check_device(device_type);
    *ret_new_tensor = wrap(new_empty(ndim, sizes_ptr, strides_ptr, dtype));
  });
}

EC_API int32_t ec_aoti_torch_clone(AtenTensorHandle self, AtenTensorHandle* ret) {
  return guarded("aoti_torch_clone", [&] { *ret = wrap(new_clone(*unwrap(self))); });
}

// A row-major copy.
EC_API int32_t ec_aoti_torch_cpu_ec_copy(AtenTensorHandle x, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_copy", [&] { *ret = wrap(new_contiguous_copy(*unwrap(x))); });
}

EC_API int32_t ec_aoti_torch_clone_preserve_strides(AtenTensorHandle self, AtenTensorHandle* ret) {
  return guarded("aoti_torch_clone_preserve_strides", [&] {
    const Tensor& source = *unwrap(self);
    OwnedTensor result(new_empty(source.dims, source.sizes, source.strides, source.dtype));
    // The bytes between the elements come along, as torch has it: overlapping views stay equal.
    const int64_t bytes = result->storage->bytes;
    if (bytes > 0) std::memcpy(result->data, source.data, static_cast<size_t>(bytes));
    *ret = wrap(result.release());
  });
}

EC_API int32_t ec_aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle src,
                                   int32_t /*non_blocking*/) {
  return guarded("aoti_torch_copy_", [&] { copy_elements(*unwrap(src), unwrap(self)); });
}

EC_API int32_t ec_aoti_torch_tensor_copy_(AtenTensorHandle src, AtenTensorHandle dst) {
  return guarded("aoti_torch_tensor_copy_", [&] { copy_elements(*unwrap(src), unwrap(dst)); });
}

EC_API int32_t ec_aoti_torch_zero_(AtenTensorHandle self) {
  return guarded("aoti_torch_zero_", [&] { fill_elements(0.0, unwrap(self)); });
}

EC_API int32_t ec_aoti_torch_cpu_fill__Scalar(AtenTensorHandle self, double value) {
  return guarded("aoti_torch_cpu_fill__Scalar", [&] { fill_elements(value, unwrap(self)); });
}

EC_API int32_t ec_aoti_torch_aten_fill__Scalar(AtenTensorHandle self, double value) {
  return ec_aoti_torch_cpu_fill__Scalar(self, value);
}

}  // namespace ec
