// Products of a program that NVIDIA's cuBLASLt computes in the place of Triton's kernels, where it
// is there and was measured to be faster.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ec::cuda {

// Scratch memory of one product at a time: what NVIDIA recommends for Hopper.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

struct Prepared;  // a product of so many rows, described for cuBLASLt

// A program's products, by the numbers that the build gave them.
struct Products {
  std::vector<int64_t> rows;  // of the last rehearsal
  // cuBLASLt computes a product of so many rows and more; of a negative number none. There may be
  // fewer entries than products.
  std::vector<int64_t> from;
  int64_t version = 0;  // of the library that this was measured with
  // Why Triton's kernels compute something after all; written once, before `failed`.
  std::string failure;
  std::atomic<bool> failed{false};
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<Prepared>> prepared;  // by number and rows

  bool need_workspace() const {
    return std::any_of(from.begin(), from.end(), [](int64_t rows) { return rows >= 0; });
  }
};

// The version of cuBLASLt, 130002 for 13.0.2. The library is loaded once per process, on a thread
// with a current context. Throws Error where there is none.
int64_t cublaslt_version();

}  // namespace ec::cuda
