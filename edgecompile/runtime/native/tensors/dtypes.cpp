// Sizes and names of element types.
#include "tensors/dtypes.h"

#include "base/status.h"

namespace ec {
namespace {

struct Type {
  int32_t code;
  int8_t size;
  const char* name;
};

constexpr Type kTypes[] = {
    {kUInt8, 1, "uint8"},
    {kInt8, 1, "int8"},
    {kInt16, 2, "int16"},
    {kInt32, 4, "int32"},
    {kInt64, 8, "int64"},
    {kFloat16, 2, "float16"},
    {kFloat32, 4, "float32"},
    {kFloat64, 8, "float64"},
    {kComplex32, 4, "complex32"},
    {kComplex64, 8, "complex64"},
    {kComplex128, 16, "complex128"},
    {kBool, 1, "bool"},
    {kBFloat16, 2, "bfloat16"},
    {kFloat8E5M2, 1, "float8_e5m2"},
    {kFloat8E4M3FN, 1, "float8_e4m3fn"},
    {kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz"},
    {kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz"},
    {kUInt16, 2, "uint16"},
    {kUInt32, 4, "uint32"},
    {kUInt64, 8, "uint64"},
    {kFloat8E8M0FNU, 1, "float8_e8m0fnu"},
    {kFloat4E2M1FNX2, 1, "float4_e2m1fn_x2"},
};

// By code, as it is asked for with every tensor; null for codes that are no type's.
struct ByCode {
  const Type* types[64] = {};
  constexpr ByCode() {
    for (const Type& type : kTypes) types[type.code] = &type;
  }
};

const Type* find_type(int32_t dtype) {
  static constexpr ByCode kByCode;
  return 0 <= dtype && dtype < 64 ? kByCode.types[dtype] : nullptr;
}

}  // namespace

int64_t element_size(int32_t dtype) {
  const Type* const type = find_type(dtype);
  if (type == nullptr) fail("unknown dtype code %d", dtype);
  return type->size;
}

const char* dtype_name(int32_t dtype) {
  const Type* const type = find_type(dtype);
  return type == nullptr ? "unknown" : type->name;
}

}  // namespace ec
