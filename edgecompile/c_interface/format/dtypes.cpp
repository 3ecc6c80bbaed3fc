// Element types: their names, codes and the values that they hold.
#include "format/dtypes.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/text.h"

namespace ecr {
namespace {

constexpr ElementType kTypes[] = {
    {"uint8", ECR_UINT8, "U8", Kind::kUnsigned, 1},
    {"int8", ECR_INT8, "I8", Kind::kSigned, 1},
    {"int16", ECR_INT16, "I16", Kind::kSigned, 2},
    {"int32", ECR_INT32, "I32", Kind::kSigned, 4},
    {"int64", ECR_INT64, "I64", Kind::kSigned, 8},
    {"float16", ECR_FLOAT16, "F16", Kind::kFloat, 2},
    {"float32", ECR_FLOAT32, "F32", Kind::kFloat, 4},
    {"float64", ECR_FLOAT64, "F64", Kind::kFloat, 8},
    {"bool", ECR_BOOL, "BOOL", Kind::kBoolean, 1},
    // Weights only: the manifest can't name it.
    {nullptr, 15, "BF16", Kind::kFloat, 2},
};

template <class T>
void store(T value, void* out) {
  std::memcpy(out, &value, sizeof value);
}

}  // namespace

const ElementType* find_type(const std::string& name) {
  for (const ElementType& type : kTypes) {
    if (type.name != nullptr && name == type.name) return &type;
  }
  return nullptr;
}

const ElementType* find_type(int32_t code) {
  for (const ElementType& type : kTypes) {
    if (type.name != nullptr && code == type.code) return &type;
  }
  return nullptr;
}

const ElementType* find_container(const std::string& container) {
  for (const ElementType& type : kTypes) {
    if (container == type.container) return &type;
  }
  return nullptr;
}

std::string list_input_types() {
  std::string text;
  for (const ElementType& type : kTypes) {
    if (type.name != nullptr) text += cat(text.empty() ? "" : ", ", type.name);
  }
  return text;
}

std::string list_containers() {
  return join(kTypes, [](const ElementType& type) { return std::string(type.container); });
}

bool holds(const ElementType& type, const Number& value) {
  if (type.kind != Kind::kFloat && !value.is_integer) return false;
  const int bits = static_cast<int>(8 * type.size);
  switch (type.kind) {
    case Kind::kBoolean:
      return value.integer == 0 || value.integer == 1;
    case Kind::kUnsigned:
      return 0 <= value.integer && value.integer < int64_t{1} << bits;
    case Kind::kSigned:
      return bits == 64 || (-(int64_t{1} << (bits - 1)) <= value.integer &&
                            value.integer < int64_t{1} << (bits - 1));
    case Kind::kFloat:
      break;
  }
  const long double top = type.size == 2 ? 65504.0L
                          : type.size == 4
                              ? static_cast<long double>(std::numeric_limits<float>::max())
                              : static_cast<long double>(std::numeric_limits<double>::max());
  return -top <= value.value() && value.value() <= top;
}

void encode(const ElementType& type, const Number& value, void* out) {
  if (type.kind == Kind::kFloat) {
    const double real = value.is_integer ? static_cast<double>(value.integer) : value.real;
    if (type.size == 2) store(to_half(real), out);
    if (type.size == 4) {
      value.is_integer ? store(static_cast<float>(value.integer), out)
                       : store(static_cast<float>(real), out);
    }
    if (type.size == 8) store(real, out);
    return;
  }
  if (type.size == 1) store(static_cast<uint8_t>(value.integer), out);
  if (type.size == 2) store(static_cast<int16_t>(value.integer), out);
  if (type.size == 4) store(static_cast<int32_t>(value.integer), out);
  if (type.size == 8) store(value.integer, out);
}

double from_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  double magnitude = 0;
  if (exponent == 31) {
    magnitude = fraction == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  } else {
    magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t to_half(double value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // The weight of the last of 11 bits; no smaller than a subnormal's.
  int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));
  if (steps == 2048) {
    steps = 1024;
    ++unit;
  }
  const int bits = steps < 1024 ? steps : ((unit + 25) << 10) + steps - 1024;
  return static_cast<uint16_t>(sign | bits);
}

}  // namespace ecr
