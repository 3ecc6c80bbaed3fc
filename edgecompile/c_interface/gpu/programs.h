// The programs of a variant of Triton kernels, on a GPU.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpu/bucket.h"
#include "gpu/tuning.h"

namespace ecr {

// Runs take turns. Of each bucket the program runs that `tune` chose on this GPU, else the first. A
// bucket of one shape, as padded ones are, replays a graph that was captured for
// it once, unless the mode is "default"; runs of other buckets are queued, or in the mode "planned"
// replay a graph of shapes that came often. Programs that read numbers from the GPU are queued in
// all modes.
class GpuPrograms : public Programs {
 public:
  // Copies the weights and rehearses every program; kernels are loaded with the first runs.
  // `buckets` are those of the mode. The folder and the variant stay as long as this. Throws Error:
  // GpuError where there is no GPU that fits, or CUDA failed.
  GpuPrograms(const BundleFolder& folder, const Variant& variant, std::vector<Bucket> buckets,
              const std::string& mode, bool check_weights);

  void run(size_t bucket, const std::vector<Array>& inputs, const std::vector<Sizes>& shapes,
           Outputs* result) override;
  void begin_text() override;
  bool warms_largest(size_t bucket) const override;
  std::vector<size_t> loaded() override;
  void describe(JsonWriter* out) override;

 private:
  GpuBucket& ready(size_t bucket);
  // Of the model's own text.
  GpuBucket& ready_for_text(size_t bucket);
  bool replays(const Bucket& bucket) const;
  void check_unbroken() const;
  void describe_cublaslt(JsonWriter* out) const;

  const BundleFolder& folder_;
  const Variant& variant_;
  std::optional<Tuned> tuned_;
  std::vector<Bucket> specs_;
  std::string mode_;
  // What is used by what follows goes last.
  std::shared_ptr<const DeviceWeights> weights_;
  Lane lane_;
  std::vector<std::unique_ptr<GpuProgram>> programs_;  // by bucket
  std::vector<int64_t> launches_;                      // of a run at each bucket's largest shapes
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuBucket>> buckets_;
  std::unique_ptr<const CacheMemory> text_;  // the caches of the model's own text
  std::vector<std::unique_ptr<GpuBucket>> text_buckets_;
  std::optional<GpuError> broken_;  // after which nothing works any more
};

}  // namespace ecr
