// Between scalars and tensors of one element, in AOTInductor's C ABI.
#include "shim/handles.h"

namespace ec {
namespace {

template <class T>
int32_t item(const char* function, AtenTensorHandle handle, int32_t dtype, T* value) {
  return guarded(function, [&] {
    const Tensor& tensor = *unwrap(handle);
    if (tensor.numel() != 1) {
      fail("a tensor of %ld elements is no scalar", tensor.numel());
    }
    // Generated code asks for the type that the tensor has; anything else is a broken model.
    if (tensor.dtype != dtype) {
      fail("a %s tensor was read as %s", dtype_name(tensor.dtype), dtype_name(dtype));
    }
    *value = *tensor.as<T>();
  });
}

template <class T>
int32_t scalar_to_tensor(const char* function, T value, int32_t dtype, AtenTensorHandle* result) {
  return guarded(function, [&] {
    Tensor* tensor = new_contiguous(0, nullptr, dtype);
    *tensor->as<T>() = value;
    *result = wrap(tensor);
  });
}

}  // namespace

#define EC_DEFINE_SCALAR(name, ours, type)                                                  \
  EC_API int32_t ec_aoti_torch_item_##name(AtenTensorHandle tensor, type* ret_value) {      \
    return item("aoti_torch_item_" #name, tensor, ours, ret_value);                         \
  }                                                                                         \
  EC_API int32_t ec_aoti_torch_scalar_to_tensor_##name(type value, AtenTensorHandle* ret) { \
    return scalar_to_tensor("aoti_torch_scalar_to_tensor_" #name, value, ours, ret);        \
  }
EC_DEFINE_SCALAR(float32, kFloat32, float)
EC_DEFINE_SCALAR(float64, kFloat64, double)
EC_DEFINE_SCALAR(uint8, kUInt8, uint8_t)
EC_DEFINE_SCALAR(uint16, kUInt16, uint16_t)
EC_DEFINE_SCALAR(uint32, kUInt32, uint32_t)
EC_DEFINE_SCALAR(uint64, kUInt64, uint64_t)
EC_DEFINE_SCALAR(int8, kInt8, int8_t)
EC_DEFINE_SCALAR(int16, kInt16, int16_t)
EC_DEFINE_SCALAR(int32, kInt32, int32_t)
EC_DEFINE_SCALAR(int64, kInt64, int64_t)
EC_DEFINE_SCALAR(bool, kBool, bool)
#undef EC_DEFINE_SCALAR

}  // namespace ec
