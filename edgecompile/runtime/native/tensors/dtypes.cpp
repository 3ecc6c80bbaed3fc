#include "tensors/dtypes.h"

#include "base/status.h"

namespace ec {

int64_t element_size(int32_t dtype) {
  switch (dtype) {
    case kUInt8:
    case kInt8:
    case kBool:
    case kFloat8E5M2:
    case kFloat8E4M3FN:
    case kFloat8E5M2FNUZ:
    case kFloat8E4M3FNUZ:
    case kFloat8E8M0FNU:
    case kFloat4E2M1FNX2:
      return 1;
    case kInt16:
    case kUInt16:
    case kFloat16:
    case kBFloat16:
      return 2;
    case kInt32:
    case kUInt32:
    case kFloat32:
    case kComplex32:
      return 4;
    case kInt64:
    case kUInt64:
    case kFloat64:
    case kComplex64:
      return 8;
    case kComplex128:
      return 16;
    default:
      fail("unknown dtype code %d", dtype);
  }
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case kUInt8:
      return "uint8";
    case kInt8:
      return "int8";
    case kInt16:
      return "int16";
    case kInt32:
      return "int32";
    case kInt64:
      return "int64";
    case kFloat16:
      return "float16";
    case kFloat32:
      return "float32";
    case kFloat64:
      return "float64";
    case kComplex32:
      return "complex32";
    case kComplex64:
      return "complex64";
    case kComplex128:
      return "complex128";
    case kBool:
      return "bool";
    case kBFloat16:
      return "bfloat16";
    case kFloat8E5M2:
      return "float8_e5m2";
    case kFloat8E4M3FN:
      return "float8_e4m3fn";
    case kFloat8E5M2FNUZ:
      return "float8_e5m2fnuz";
    case kFloat8E4M3FNUZ:
      return "float8_e4m3fnuz";
    case kUInt16:
      return "uint16";
    case kUInt32:
      return "uint32";
    case kUInt64:
      return "uint64";
    case kFloat8E8M0FNU:
      return "float8_e8m0fnu";
    case kFloat4E2M1FNX2:
      return "float4_e2m1fn_x2";
    default:
      return "unknown";
  }
}

}  // namespace ec
