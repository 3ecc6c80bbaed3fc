// Between scalars and tensors of one element, in AOTInductor's C ABI.
#include "shim/aoti_abi.h"

namespace {

template <class T>
AOTITorchError item(const char* function, AtenTensorHandle handle, int32_t dtype, T* value) {
  return ec::guarded(function, [&] {
    const ec::Tensor& tensor = *ec::unwrap(handle);
    if (tensor.numel() != 1) {
      ec::fail("a tensor of %lld elements is no scalar", static_cast<long long>(tensor.numel()));
    }
    // Generated code asks for the type that the tensor has; anything else is a broken model.
    if (tensor.dtype != dtype) {
      ec::fail("a %s tensor was read as %s", ec::dtype_name(tensor.dtype), ec::dtype_name(dtype));
    }
    *value = *tensor.as<T>();
  });
}

template <class T>
AOTITorchError scalar_to_tensor(const char* function, T value, int32_t dtype,
                                AtenTensorHandle* result) {
  return ec::guarded(function, [&] {
    ec::Tensor* tensor = ec::new_contiguous(0, nullptr, dtype);
    *tensor->as<T>() = value;
    *result = ec::wrap(tensor);
  });
}

}  // namespace

#define EC_DEFINE_SCALAR(name, type)                                                        \
  AOTITorchError ec_aoti_torch_item_##name(AtenTensorHandle tensor, type* ret_value) {      \
    return item("aoti_torch_item_" #name, tensor, ec_aoti_torch_dtype_##name(), ret_value); \
  }                                                                                         \
  AOTITorchError ec_aoti_torch_scalar_to_tensor_##name(type value,                          \
                                                       AtenTensorHandle* ret_new_tensor) {  \
    return scalar_to_tensor("aoti_torch_scalar_to_tensor_" #name, value,                    \
                            ec_aoti_torch_dtype_##name(), ret_new_tensor);                  \
  }
EC_FOR_EACH_SCALAR(EC_DEFINE_SCALAR)
#undef EC_DEFINE_SCALAR
