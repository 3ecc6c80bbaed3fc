// Arrays that a call owns or borrows, and copies between strides.
#include "call/arrays.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/text.h"

namespace ecr {
namespace {

constexpr size_t kAlignment = 64;

void copy_dimension(uint8_t* target, const int64_t* target_strides, const uint8_t* source,
                    const int64_t* source_strides, const int64_t* sizes, size_t dims,
                    int64_t element_size) {
  if (dims == 0) {
    std::memcpy(target, source, static_cast<size_t>(element_size));
    return;
  }
  if (dims == 1 && *target_strides == 1 && *source_strides == 1) {
    std::memcpy(target, source, static_cast<size_t>(*sizes * element_size));
    return;
  }
  for (int64_t i = 0; i < *sizes; ++i) {
    copy_dimension(target + i * *target_strides * element_size, target_strides + 1,
                   source + i * *source_strides * element_size, source_strides + 1, sizes + 1,
                   dims - 1, element_size);
  }
}

}  // namespace

Buffer::Buffer(int64_t nbytes) {
  const size_t size = (static_cast<size_t>(std::max<int64_t>(nbytes, 1)) + kAlignment - 1) /
                      kAlignment * kAlignment;
  data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, size)));
  if (data_ == nullptr) throw std::bad_alloc();
}

Buffer Buffer::zeros(int64_t nbytes) {
  Buffer buffer;
  buffer.data_.reset(static_cast<uint8_t*>(std::calloc(static_cast<size_t>(nbytes), 1)));
  if (buffer.data_ == nullptr && nbytes > 0) throw std::bad_alloc();
  return buffer;
}

void Buffer::Free::operator()(uint8_t* data) const { std::free(data); }

int64_t count_elements(const Sizes& sizes) {
  // An empty array's other sizes may have any product.
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

Array make_array(const ElementType& type, Sizes sizes) {
  Array array;
  array.owned = Buffer(count_elements(sizes) * type.size);
  array.type = &type;
  array.sizes = std::move(sizes);
  array.data = array.owned.data();
  return array;
}

Sizes shape_of(const TensorSpec& spec, const Sizes& sizes) {
  Sizes shape;
  for (const Dim& dim : spec.shape) {
    const bool is_known = dim.kind == Dim::Kind::kSum && dim.sum.is_known(sizes);
    shape.push_back(dim.kind == Dim::Kind::kAxis    ? sizes[dim.axis]
                    : dim.kind == Dim::Kind::kFixed ? dim.size
                    : is_known                      ? dim.sum.at(sizes)
                                                    : -1);
  }
  return shape;
}

std::vector<Sizes> shapes_of(const std::vector<TensorSpec>& specs, const Sizes& sizes) {
  std::vector<Sizes> shapes;
  for (const TensorSpec& spec : specs) shapes.push_back(shape_of(spec, sizes));
  return shapes;
}

Sizes row_major(const Sizes& sizes) {
  Sizes strides(sizes.size());
  // Unsigned: an empty array's strides mean nothing, and may overflow.
  uint64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(sizes[i], 1));
  }
  return strides;
}

std::string sizes_text(const Sizes& sizes) { return cat("[", join(sizes), "]"); }

ecr_tensor view_of(const Array& array) {
  ecr_tensor tensor = {};
  tensor.data = array.data;
  tensor.nbytes = count_elements(array.sizes) * array.type->size;
  tensor.dtype = array.type->code;
  tensor.ndim = static_cast<int32_t>(array.sizes.size());
  std::copy(array.sizes.begin(), array.sizes.end(), tensor.sizes);
  return tensor;
}

void fill(Array* array, const Number& value) {
  uint8_t element[8] = {};
  encode(*array->type, value, element);
  const int64_t size = array->type->size;
  const int64_t nbytes = count_elements(array->sizes) * size;
  uint8_t* const data = array->owned.data();
  if (std::all_of(element, element + size, [&](uint8_t byte) { return byte == element[0]; })) {
    std::memset(data, element[0], static_cast<size_t>(nbytes));
    return;
  }
  for (int64_t at = 0; at < nbytes; at += size) {
    std::memcpy(data + at, element, static_cast<size_t>(size));
  }
}

void copy_box(uint8_t* target, const Sizes& target_strides, const uint8_t* source,
              const Sizes& source_strides, const Sizes& sizes, int64_t element_size) {
  if (count_elements(sizes) == 0) return;
  copy_dimension(target, target_strides.data(), source, source_strides.data(), sizes.data(),
                 sizes.size(), element_size);
}

}  // namespace ecr
