// A weights file: a safetensors container whose tensors are 64-byte aligned.
//
// It is mapped read-only once per process, whatever number of buckets, programs and models use it;
// its pages are shared with every other process that maps it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bundle/files.h"

namespace ecr {

// One tensor: row-major, `nbytes` bytes at `offset` from the start of the file.
struct Constant {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<int64_t> shape;
  int64_t offset = 0;
  int64_t nbytes = 0;
};

class Weights : Fixed {
 public:
  // Checks the header and maps the file. Throws Error ECR_BUNDLE with the first broken rule
  // (weights-* and json-* of FORMAT.md) that the use of a tensor depends on.
  Weights(const Descriptor& file, int64_t size, const std::string& source);
  ~Weights();

  // In the order of the header, without the entries that fill gaps.
  const std::vector<Constant>& constants() const { return constants_; }
  const uint8_t* data() const { return data_; }
  // Compares the hash unless this mapping's was found to be the recorded one before.
  void check_hash(const BundleFolder& folder, const std::string& name, const Descriptor& file);

 private:
  std::vector<Constant> constants_;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
  std::mutex mutex_;
  std::string known_sha256_;
};

// Maps a weights file of a bundle, or returns this process' mapping of the same file. Throws Error
// ECR_DAMAGED or ECR_BUNDLE.
std::shared_ptr<Weights> map_weights(const BundleFolder& folder, const std::string& name,
                                     bool check_hash);

}  // namespace ecr
