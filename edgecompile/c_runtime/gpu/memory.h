// Memory on a GPU: the weights, which models share, what goes there and back with a run, and the
// caches of a text.
#pragma once

#include <memory>
#include <vector>

#include "bundle/weights.h"
#include "gpu/driver.h"

namespace ecr {

constexpr int64_t kAlignment = 256;  // of everything that a program reads and writes

// A weights file's tensors on the GPU: copied once per process, whatever number of programs and
// models uses them.
class DeviceWeights {
 public:
  // Copies those of a file, or finds the copy of one of the same hash. Throws Error; GpuError where
  // there isn't the memory.
  static std::shared_ptr<const DeviceWeights> share(const Driver& driver, const Weights& weights,
                                                    const std::string& sha256);

  const std::vector<Constant>& constants() const { return constants_; }
  Address address(const Constant& constant) const {
    return memory_.get() + static_cast<Address>(constant.offset - start_);
  }
  int64_t nbytes() const { return nbytes_; }

 private:
  DeviceWeights(const Driver& driver, const Weights& weights);

  std::vector<Constant> constants_;
  int64_t start_ = 0;  // of the tensors in the file
  int64_t nbytes_ = 0;
  Owned<Address> memory_;
};

// Memory of the CPU that stays in place, and as much of the GPU's, between which inputs and outputs
// are copied. Where both share their memory the GPU reaches into the former, and nothing is copied.
class Staging {
 public:
  Staging(const Driver& driver, int64_t nbytes, bool zero_copy);  // Throws GpuError.

  int64_t nbytes() const { return nbytes_; }
  uint8_t* host() const { return static_cast<uint8_t*>(pinned_.get()); }
  Address device() const { return device_; }
  // Queue the copy of a part. Throw GpuError.
  void send(int64_t start, int64_t end, void* stream) const;
  void fetch(int64_t start, int64_t end, void* stream) const;

 private:
  const Driver& driver_;
  int64_t nbytes_;
  Address device_ = 0;
  Owned<void*> pinned_;
  Owned<Address> memory_;  // none where it is shared
};

// The caches of a text, which stay on the GPU: each is changed in place by programs.
class CacheMemory {
 public:
  // Allocates the caches among a generative program's inputs, with all their rows. Throws GpuError.
  CacheMemory(const Driver& driver, const Manifest& manifest);

  int64_t nbytes() const { return nbytes_; }
  // Of the input with this number; 0 where that is no cache.
  Address address(size_t input) const {
    return offsets_[input] < 0 ? 0 : memory_.get() + static_cast<Address>(offsets_[input]);
  }
  // Makes them zeros, and waits: a NaN in a row that isn't seen yet might spread. Throws GpuError.
  void clear(void* stream) const;

 private:
  const Driver& driver_;
  std::vector<int64_t> offsets_;
  int64_t nbytes_ = 0;
  Owned<Address> memory_;
};

}  // namespace ecr
