// Element types of inputs, outputs and weights.
#pragma once

#include <cstdint>
#include <string>

#include "edgecompile_runtime.h"
#include "json/field.h"

namespace ecr {

enum class Kind : uint8_t { kBoolean, kSigned, kUnsigned, kFloat };

struct ElementType {
  const char* name;       // in the manifest
  int32_t code;           // c10::ScalarType, at both C interfaces
  const char* container;  // in the header of a weights file
  Kind kind;
  int64_t size;  // bytes
};

// Null where there is none. What inputs and outputs may have is everything but float8; of these
// only caches may be bfloat16.
const ElementType* find_type(const std::string& name);
const ElementType* find_type(int32_t code);
const ElementType* find_container(const std::string& container);

// Whether a value can be written in the type: whole for integers, within its range.
bool holds(const ElementType& type, const Number& value);
// Writes a value that the type holds; `out` has room for its size.
void encode(const ElementType& type, const Number& value, void* out);

double from_half(uint16_t bits);
uint16_t to_half(double value);  // to nearest, ties to even; |value| at most 65504

}  // namespace ecr
