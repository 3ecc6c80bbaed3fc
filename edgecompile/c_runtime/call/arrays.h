// Row-major arrays and strided copies between them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "format/schema.h"

namespace ecr {

// Memory aligned to 64 bytes. Throws std::bad_alloc.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t nbytes);
  // Zeros, whose pages the system makes when they are written; aligned to 16 bytes.
  static Buffer zeros(int64_t nbytes);
  uint8_t* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(uint8_t* data) const;
  };
  std::unique_ptr<uint8_t[], Free> data_;
};

using Sizes = std::vector<int64_t>;

// A row-major array that borrows its memory, or owns it.
struct Array {
  const ElementType* type = nullptr;
  Sizes sizes;
  const uint8_t* data = nullptr;
  Buffer owned;
};

// An array of its own, with no values yet.
Array make_array(const ElementType& type, Sizes sizes);
// The product of the sizes, which has to fit unless one of them is 0.
int64_t count_elements(const Sizes& sizes);
// The shape of an input or output where axes have these sizes; -1 for a size of no axis.
Sizes shape_of(const TensorSpec& spec, const Sizes& sizes);
std::vector<Sizes> shapes_of(const std::vector<TensorSpec>& specs, const Sizes& sizes);
// Strides of a row-major array, in elements.
Sizes row_major(const Sizes& sizes);
std::string sizes_text(const Sizes& sizes);  // "[1, 7]"

// The array as the interface has it, without a name.
ecr_tensor view_of(const Array& array);
// Fills an array with one value, which its type holds.
void fill(Array* array, const Number& value);
// Copies a box of `sizes` between arrays whose strides (in elements) are given.
void copy_box(uint8_t* target, const Sizes& target_strides, const uint8_t* source,
              const Sizes& source_strides, const Sizes& sizes, int64_t element_size);

}  // namespace ecr
