// Copies between layouts and element types; conversions.
#include "tensors/copies.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/profile.h"

namespace ec {
namespace {

// float16 and bfloat16 travel as their bits and are converted by hand, so that no compiler support
// for the types is needed.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

float to_float(BFloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

float to_float(Float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  float result;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    result = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign != 0 ? -result : result;
  }
  const uint32_t wide = exponent == 31 ? 0xffu : exponent + 112u;
  const uint32_t bits = sign | (wide << 23) | (mantissa << 13);
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Round to nearest even, as c10 does.
BFloat16 to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>(bits >> 16)};
}

Float16 to_float16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {  // subnormal result: let float addition round at bit 2^-24
    float scaled;
    std::memcpy(&scaled, &magnitude, sizeof scaled);
    scaled += 0.5f;
    uint32_t rounded;
    std::memcpy(&rounded, &scaled, sizeof rounded);
    return {static_cast<uint16_t>(sign | (rounded - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<From, Float16> || std::is_same_v<From, BFloat16>) {
    return convert<To>(to_float(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Float16>) {
    return to_float16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // Casting a value outside int64 is undefined in C++; saturate it instead.
    constexpr From kLimit = static_cast<From>(9.2233720368547758e18);
    if (!(value > -kLimit)) return static_cast<To>(value == value ? INT64_MIN : 0);
    if (value >= kLimit) return static_cast<To>(INT64_MAX);
    return static_cast<To>(static_cast<int64_t>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Loop over all elements: two strides per dimension, innermost last.
struct Loop {
  int dims;
  int64_t sizes[kMaxDims];
  int64_t source_strides[kMaxDims];
  int64_t target_strides[kMaxDims];
};

Loop broadcast_loop(const Tensor& source, const Tensor& target) {
  if (source.dims > target.dims) {
    fail("cannot copy %d dimensions into %d", source.dims, target.dims);
  }
  Loop loop{};
  const int lead = target.dims - source.dims;
  for (int i = 0; i < target.dims; ++i) {
    const int64_t size = target.sizes[i];
    int64_t stride = 0;
    if (i >= lead) {
      const int64_t from = source.sizes[i - lead];
      if (from != size && from != 1) {
        fail("cannot broadcast size %ld to %ld in dimension %d", from, size, i);
      }
      stride = from == 1 ? 0 : source.strides[i - lead];
    }
    if (size == 1) continue;
    // Merge with the dimension before where both sides allow it: long inner loops.
    if (loop.dims > 0) {
      const int last = loop.dims - 1;
      if (loop.source_strides[last] == stride * size &&
          loop.target_strides[last] == target.strides[i] * size) {
        loop.sizes[last] *= size;
        loop.source_strides[last] = stride;
        loop.target_strides[last] = target.strides[i];
        continue;
      }
    }
    loop.sizes[loop.dims] = size;
    loop.source_strides[loop.dims] = stride;
    loop.target_strides[loop.dims] = target.strides[i];
    ++loop.dims;
  }
  if (loop.dims == 0) {
    loop.dims = 1;
    loop.sizes[0] = 1;
  }
  return loop;
}

template <class Row>
void each_row(const Loop& loop, const Row& row) {
  const int outer = loop.dims - 1;
  int64_t index[kMaxDims] = {};
  int64_t source = 0;
  int64_t target = 0;
  for (;;) {
    row(source, target);
    int d = outer - 1;
    for (; d >= 0; --d) {
      source += loop.source_strides[d];
      target += loop.target_strides[d];
      if (++index[d] < loop.sizes[d]) break;
      source -= loop.source_strides[d] * loop.sizes[d];
      target -= loop.target_strides[d] * loop.sizes[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

template <class T>
void copy_typed(const Loop& loop, const void* source, void* target) {
  const T* from = static_cast<const T*>(source);
  T* to = static_cast<T*>(target);
  const int inner = loop.dims - 1;
  const int64_t count = loop.sizes[inner];
  const int64_t step_from = loop.source_strides[inner];
  const int64_t step_to = loop.target_strides[inner];
  each_row(loop, [&](int64_t at_from, int64_t at_to) {
    const T* row_from = from + at_from;
    T* row_to = to + at_to;
    if (step_from == 1 && step_to == 1) {
      std::memcpy(row_to, row_from, static_cast<size_t>(count) * sizeof(T));
      return;
    }
    for (int64_t i = 0; i < count; ++i) row_to[i * step_to] = row_from[i * step_from];
  });
}

// Conversions go through the widest type of their kind, which holds every number of the others: a
// function for each type and direction. One for each pair of types was a quarter of the runtime. A
// row's elements are taken in parts that stay in the nearest cache.
constexpr int64_t kPart = 512;

template <class T>
using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;  // bool is integral

template <class From>
void read_wide(const void* source, int64_t step, int64_t count, Wide<From>* to) {
  const From* from = static_cast<const From*>(source);
  for (int64_t i = 0; i < count; ++i) to[i] = convert<Wide<From>>(from[i * step]);
}

template <class To, class From>
void write_narrow(const From* from, int64_t count, void* target, int64_t step) {
  To* to = static_cast<To*>(target);
  for (int64_t i = 0; i < count; ++i) to[i * step] = convert<To>(from[i]);
}

// How elements of one dtype are read, as the wide type of their kind, and written from either.
struct Conversion {
  int32_t dtype;
  void (*read_whole)(const void*, int64_t, int64_t, int64_t*);
  void (*read_real)(const void*, int64_t, int64_t, double*);
  void (*write_whole)(const int64_t*, int64_t, void*, int64_t);
  void (*write_real)(const double*, int64_t, void*, int64_t);
};

template <class T>
constexpr Conversion conversion_of(int32_t dtype) {
  Conversion result{dtype, nullptr, nullptr, write_narrow<T, int64_t>, write_narrow<T, double>};
  if constexpr (std::is_integral_v<T>) {
    result.read_whole = read_wide<T>;
  } else {
    result.read_real = read_wide<T>;
  }
  return result;
}

const Conversion* find_conversion(int32_t dtype) {
  static constexpr Conversion kConversions[] = {
      conversion_of<uint8_t>(kUInt8), conversion_of<int8_t>(kInt8),
      conversion_of<int16_t>(kInt16), conversion_of<int32_t>(kInt32),
      conversion_of<int64_t>(kInt64), conversion_of<Float16>(kFloat16),
      conversion_of<float>(kFloat32), conversion_of<double>(kFloat64),
      conversion_of<bool>(kBool),     conversion_of<BFloat16>(kBFloat16),
  };
  for (const Conversion& conversion : kConversions) {
    if (conversion.dtype == dtype) return &conversion;
  }
  return nullptr;
}

template <class Wide>
void run_conversion(const Loop& loop, const Tensor& source, const Tensor& target,
                    void (*read)(const void*, int64_t, int64_t, Wide*),
                    void (*write)(const Wide*, int64_t, void*, int64_t)) {
  const int inner = loop.dims - 1;
  const int64_t from_size = element_size(source.dtype), to_size = element_size(target.dtype);
  const int64_t from_step = loop.source_strides[inner], to_step = loop.target_strides[inner];
  const char* const from = static_cast<const char*>(source.data);
  char* const to = static_cast<char*>(target.data);
  alignas(64) Wide part[kPart];
  each_row(loop, [&](int64_t at_from, int64_t at_to) {
    for (int64_t i = 0; i < loop.sizes[inner]; i += kPart) {
      const int64_t count = std::min(kPart, loop.sizes[inner] - i);
      read(from + (at_from + i * from_step) * from_size, from_step, count, part);
      write(part, count, to + (at_to + i * to_step) * to_size, to_step);
    }
  });
}

}  // namespace

void copy_elements(const Tensor& source, Tensor* target) {
  const Loop loop = broadcast_loop(source, *target);
  if (target->numel() == 0) return;
  const int64_t bytes = element_size(source.dtype) + element_size(target->dtype);
  const WorkTimer timer(Work::kCopy, {.bytes = target->numel() * bytes});
  const bool same_view = source.data == target->data && source.dtype == target->dtype;
  if (shares_memory(source, *target)) {
    bool identical = same_view;
    for (int d = 0; d < loop.dims; ++d) {
      identical = identical && loop.source_strides[d] == loop.target_strides[d];
    }
    if (identical) return;
    OwnedTensor apart(new_contiguous_copy(source));
    copy_elements(*apart, target);
    return;
  }
  if (source.dtype == target->dtype) {
    return visit_bytes(element_size(source.dtype), [&](auto element) {
      copy_typed<decltype(element)>(loop, source.data, target->data);
    });
  }
  const Conversion* const from = find_conversion(source.dtype);
  const Conversion* const to = find_conversion(target->dtype);
  if (from == nullptr || to == nullptr) {
    fail("cannot convert %s to %s", dtype_name(source.dtype), dtype_name(target->dtype));
  }
  if (from->read_whole != nullptr) {
    run_conversion(loop, source, *target, from->read_whole, to->write_whole);
  } else {
    run_conversion(loop, source, *target, from->read_real, to->write_real);
  }
}

Tensor* new_clone(const Tensor& source) {
  int64_t strides[kMaxDims];
  preserved_strides(source, strides);
  OwnedTensor result(new_empty(source.dims, source.sizes, strides, source.dtype));
  copy_elements(source, result.get());
  return result.release();
}

Tensor* new_contiguous_copy(const Tensor& source) {
  OwnedTensor result(new_contiguous(source.dims, source.sizes, source.dtype));
  copy_elements(source, result.get());
  return result.release();
}

const Tensor& row_major(const Tensor& tensor, OwnedTensor* holder) {
  if (is_contiguous(tensor)) return tensor;
  holder->reset(new_contiguous_copy(tensor));
  return **holder;
}

const Tensor& converted(const Tensor& tensor, int32_t dtype, OwnedTensor* holder) {
  if (tensor.dtype == dtype) return tensor;
  holder->reset(new_contiguous(tensor.dims, tensor.sizes, dtype));
  copy_elements(tensor, holder->get());
  return **holder;
}

Tensor* narrowed(OwnedTensor* result, int32_t dtype) {
  const Tensor& wide = **result;
  if (wide.dtype == dtype) return result->release();
  OwnedTensor narrow(new_empty(wide.dims, wide.sizes, wide.strides, dtype));
  copy_elements(wide, narrow.get());
  return narrow.release();
}

void fill_elements(double value, Tensor* target) {
  OwnedTensor scalar(new_contiguous(0, nullptr, kFloat64));
  *scalar->as<double>() = value;
  copy_elements(*scalar, target);
}

}  // namespace ec
