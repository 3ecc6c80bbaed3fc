// The programs of a variant of Triton kernels, on a GPU.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpu/bucket.h"
#include "gpu/tuning.h"

namespace ecr {

// The leading part of an output, of this shape; -1: all there is. Throws GpuError.
Array cut(const TensorSpec& spec, const Sizes& sizes, const uint8_t* data, const Sizes& shape);

// The caches of a text on the GPU, and the buckets that ran over them.
struct GpuText {
  GpuText(const Driver& driver, const Manifest& manifest)
      : caches(driver, manifest), buckets(manifest.buckets.size()) {}
  CacheMemory caches;
  std::vector<std::unique_ptr<GpuBucket>> buckets;
};

// Runs take turns. Of each bucket the program runs that `tune` chose on this GPU, else the first. A
// bucket of one shape, as padded ones are, replays a graph that was captured for it once, unless
// the mode is "default". Runs of other buckets are queued, or in the mode "planned" replay a graph
// of shapes that came often. Programs that read numbers from the GPU are queued in all modes.
//
// Python runs variants with this class, too (runtime/native/cuda/variants).
class GpuPrograms : public Programs {
 public:
  // Copies the weights and rehearses every program; kernels are loaded with the first runs.
  // `choice` takes the place of what `tune` recorded. The folder and the variant stay as long as
  // this. Throws Error: GpuError where there is no GPU that fits, or CUDA failed; ECR_MODE.
  GpuPrograms(const BundleFolder& folder, const Variant& variant, const std::string& mode,
              bool check_weights, const std::optional<Tuned>& choice = std::nullopt);

  // The buckets of the mode.
  const std::vector<Bucket>& buckets() const { return specs_; }
  void run(size_t bucket, const std::vector<Array>& inputs, const std::vector<Sizes>& shapes,
           Outputs* result) override;
  // Runs over the caches of a text, or where it is null over those among the inputs. Throws Error.
  void run(size_t bucket, GpuText* text, const std::vector<Array>& inputs, const Take& take);
  // Loads a bucket's program without running it. Throws Error.
  void load(size_t bucket, GpuText* text);
  // The memory of a text, zeros: the one that was given back last, or a new one. Throws GpuError.
  GpuText* take_text();
  // Leaves a text for the next one.
  void give_back(GpuText* text);
  void begin_text() override;
  bool warms_largest(size_t bucket) const override;
  std::vector<size_t> loaded() override;
  // Why every further run is refused; "": none is.
  std::string broken();
  void describe(JsonWriter* out) override;

 private:
  GpuBucket& ready(size_t bucket, GpuText* text);
  // Calls `body` in its turn, with the GPU; what it throws may end all further runs.
  template <class Body>
  auto in_turn(Body&& body);
  bool replays(const Bucket& bucket) const;
  GpuError explain_broken() const;

  const BundleFolder& folder_;
  const Variant& variant_;
  std::optional<Tuned> tuned_;
  std::vector<Bucket> specs_;
  std::string mode_;
  // What is used by what follows goes last.
  std::shared_ptr<const DeviceWeights> weights_;
  SharedStream shared_;
  std::vector<std::unique_ptr<GpuProgram>> programs_;  // by bucket
  std::vector<int64_t> launches_;                      // of a run at each bucket's largest shapes
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuBucket>> buckets_;
  std::vector<std::unique_ptr<GpuText>> texts_;
  std::deque<GpuText*> idle_;       // of them
  GpuText* text_ = nullptr;         // the model's own
  std::optional<GpuError> broken_;  // after which nothing works any more
};

}  // namespace ecr
