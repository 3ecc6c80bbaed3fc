// Aligned memory that a thread keeps from one call to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace ec {

// Each user owns one as a thread_local. Grows to the largest request, so requests must be bounded
// by something better than a model's sizes: the kernels ask for a few cache-sized blocks.
class Scratch {
 public:
  // `floats` uninitialised floats, 64-byte aligned; what an earlier call returned is gone.
  float* get(int64_t floats) {
    if (floats > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(new (std::align_val_t{64}) float[static_cast<size_t>(floats)]);
      size_ = floats;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Free> memory_;
  int64_t size_ = 0;
};

}  // namespace ec
