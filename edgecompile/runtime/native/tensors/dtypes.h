// Element types of tensors.
#pragma once

#include <cstdint>

namespace ec {

// The codes are c10::ScalarType's, which compiled models and the host ABI carry as integers.
enum DType : int32_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kComplex32 = 8,
  kComplex64 = 9,
  kComplex128 = 10,
  kBool = 11,
  kBFloat16 = 15,
  kFloat8E5M2 = 23,
  kFloat8E4M3FN = 24,
  kFloat8E5M2FNUZ = 25,
  kFloat8E4M3FNUZ = 26,
  kUInt16 = 27,
  kUInt32 = 28,
  kUInt64 = 29,
  kFloat8E8M0FNU = 44,
  kFloat4E2M1FNX2 = 45,
};

int64_t element_size(int32_t dtype);    // bytes; throws Error for an unknown code
const char* dtype_name(int32_t dtype);  // "float32"; "unknown" for an unknown code

}  // namespace ec
