// The programs of a variant for the CPU.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "call/programs.h"

namespace ecr {

class CpuPrograms : public Programs {
 public:
  // `threads` of one run, 0 for as many as there are; `concurrency` runs of one bucket go on at a
  // time. The folder and the variant stay as long as this. Throws Error.
  CpuPrograms(const BundleFolder& folder, const Variant& variant, int32_t threads,
              int32_t concurrency, bool check_weights);
  ~CpuPrograms() override;

  void run(size_t bucket, const std::vector<Array>& inputs, const std::vector<Sizes>& shapes,
           Outputs* result) override;
  void begin_text() override;
  std::vector<size_t> loaded() override;
  void describe(JsonWriter* out) override;

 private:
  const Program& program(size_t bucket);

  const BundleFolder& folder_;
  const Variant& variant_;
  int32_t concurrency_;
  const RuntimeLibrary* runtime_ = nullptr;
  std::shared_ptr<Weights> weights_;
  // Programs are made under the mutex, and found without it: loading one doesn't hold up runs of
  // another.
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Program>> programs_;
  std::unique_ptr<std::atomic<const Program*>[]> ready_;
  std::vector<Buffer> text_;  // the caches of the model's own text, one for each input
};

}  // namespace ecr
