// Uninitialised floats of the caching allocator, for as long as a kernel runs.
#pragma once

#include <cstdint>

#include "base/allocator.h"

namespace ec {

class Block {
 public:
  // Throws std::bad_alloc.
  explicit Block(int64_t floats)
      : data_(allocate(static_cast<size_t>(floats) * sizeof(float), &capacity_)) {}
  ~Block() { release(data_, capacity_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  float* get() const { return static_cast<float*>(data_); }

 private:
  size_t capacity_ = 0;
  void* data_;
};

}  // namespace ec
