// Element types: their names, codes and the values that they hold.
#include "format/dtypes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

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
    {"bfloat16", ECR_BFLOAT16, "BF16", Kind::kFloat, 2},
    // Weights only: the manifest can't name it.
    {nullptr, 24, "F8_E4M3", Kind::kFloat, 1},
};

template <class Matches>
const ElementType* find_if(const Matches& matches) {
  const auto found = std::find_if(std::begin(kTypes), std::end(kTypes), matches);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace

const ElementType* find_type(const std::string& name) {
  return find_if(
      [&](const ElementType& type) { return type.name != nullptr && name == type.name; });
}

const ElementType* find_type(int32_t code) {
  return find_if(
      [=](const ElementType& type) { return type.name != nullptr && code == type.code; });
}

const ElementType* find_container(const std::string& container) {
  return find_if([&](const ElementType& type) { return container == type.container; });
}

bool holds(const ElementType& type, const Number& number) {
  if (type.kind == Kind::kFloat) {
    const double most = type.size == 2   ? 65504.0
                        : type.size == 4 ? double{std::numeric_limits<float>::max()}
                                         : std::numeric_limits<double>::max();
    return -most <= number.value && number.value <= most;
  }
  const bool is_signed = type.kind == Kind::kSigned;
  const int bits = type.kind == Kind::kBoolean ? 1 : static_cast<int>(8 * type.size) - is_signed;
  const long double end = std::ldexp(1.0L, bits);
  return number.is_integer && number.value < end && number.value >= (is_signed ? -end : 0);
}

void encode(const ElementType& type, const Number& number, void* out) {
  // Little-endian: no program runs elsewhere.
  const auto size = static_cast<size_t>(type.size);
  const auto store = [out, size](auto value) { std::memcpy(out, &value, size); };
  if (type.kind != Kind::kFloat) return store(static_cast<int64_t>(number.value));
  if (type.code == ECR_BFLOAT16) {  // of no bounds, only of what warms up
    const auto value = static_cast<float>(number.value);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return store(static_cast<uint16_t>(bits >> 16));
  }
  if (size == 2) return store(to_half(static_cast<double>(number.value)));
  size == 4 ? store(static_cast<float>(number.value)) : store(static_cast<double>(number.value));
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
