// Element types of tensors.
#pragma once

#include <cstdint>

namespace ec {

// X(torch's name, ours, code, bytes). The codes are c10::ScalarType's, which compiled models and
// the host ABI carry as integers.
// clang-format off: it never comes to rest on this list.
#define EC_FOR_EACH_DTYPE(X) \
  X(uint8, kUInt8, 0, 1) \
  X(int8, kInt8, 1, 1) \
  X(int16, kInt16, 2, 2) \
  X(int32, kInt32, 3, 4) \
  X(int64, kInt64, 4, 8) \
  X(float16, kFloat16, 5, 2) \
  X(float32, kFloat32, 6, 4) \
  X(float64, kFloat64, 7, 8) \
  X(complex32, kComplex32, 8, 4) \
  X(complex64, kComplex64, 9, 8) \
  X(complex128, kComplex128, 10, 16) \
  X(bool, kBool, 11, 1) \
  X(bfloat16, kBFloat16, 15, 2) \
  X(float8_e5m2, kFloat8E5M2, 23, 1) \
  X(float8_e4m3fn, kFloat8E4M3FN, 24, 1) \
  X(float8_e5m2fnuz, kFloat8E5M2FNUZ, 25, 1) \
  X(float8_e4m3fnuz, kFloat8E4M3FNUZ, 26, 1) \
  X(uint16, kUInt16, 27, 2) \
  X(uint32, kUInt32, 28, 4) \
  X(uint64, kUInt64, 29, 8) \
  X(float8_e8m0fnu, kFloat8E8M0FNU, 44, 1) \
  X(float4_e2m1fn_x2, kFloat4E2M1FNX2, 45, 1)
// clang-format on

#define EC_DEFINE_CODE(name, ours, code, bytes) ours = code,
enum DType : int32_t { EC_FOR_EACH_DTYPE(EC_DEFINE_CODE) };
#undef EC_DEFINE_CODE

int64_t element_size(int32_t dtype);    // bytes; throws Error for an unknown code
const char* dtype_name(int32_t dtype);  // "float32"; "unknown" for an unknown code

}  // namespace ec
