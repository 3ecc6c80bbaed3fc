// The programs of a variant of Triton kernels: opened, run in turns, described.
#include "gpu/programs.h"

#include <algorithm>

#include "base/text.h"
#include "call/inputs.h"
#include "gpu/variant.h"

namespace ecr {
namespace {

constexpr int64_t kLeastScratch = 256;
constexpr size_t kMostGraphs = 64;    // of a bucket's shapes
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING: doesn't wait for the default stream

// A bucket's largest sizes, and those just below: there an output may be cut from a larger tensor
// in scratch memory (rows that are filled up to a multiple of 8).
std::vector<Sizes> scratch_sizes(const Bucket& bucket) {
  std::vector<Sizes> result{largest_sizes(bucket)};
  for (size_t axis = 0; axis < bucket.axes.size(); ++axis) {
    const auto& padded = bucket.pad_axes;
    if (bucket.axes[axis].lo == bucket.axes[axis].hi ||
        std::find(padded.begin(), padded.end(), axis) != padded.end()) {
      continue;
    }
    Sizes below = result.front();
    --below[axis];
    result.push_back(below);
  }
  return result;
}

std::string boolean(bool value) { return value ? "true" : "false"; }

}  // namespace

GpuPrograms::GpuPrograms(const BundleFolder& folder, const Variant& variant,
                         std::vector<Bucket> buckets, const std::string& mode, bool check_weights)
    : folder_(folder), variant_(variant), specs_(std::move(buckets)), mode_(mode) {
  const Manifest& manifest = folder_.manifest();
  const PinnedLibrary& pinned = pin_library(folder_, variant_.runtime);
  const std::string& file = manifest.weights.at(variant_.gpu->precision);
  const std::shared_ptr<Weights> weights = map_weights(folder_, file, check_weights);
  const std::string label = cat(folder_.path(), ": the variant ", variant_.name);
  if (const std::optional<GpuError> refusal = find_refusal(variant_)) {
    throw refusal->retold(cat(label, " can't run here: ", refusal->message));
  }
  const Driver& driver = Driver::load();
  lane_.driver = &driver;
  lane_.records = variant_.gpu->graphs;
  lane_.device = driver.describe();
  const GpuLibrary& library =
      *load_runtime<GpuLibrary>(pinned, file_name(variant_.runtime), lane_.driver);
  tuned_ = find_tuned(manifest, variant_, lane_.device);
  const Driver::Current current(driver);
  weights_ = DeviceWeights::share(driver, *weights, manifest.files.at(file).sha256);
  lane_.scratch_bytes = kLeastScratch;
  const std::vector<std::vector<std::string>> lists = list_candidates(variant_);
  for (size_t i = 0; i < lists.size(); ++i) {
    const std::string& program = lists[i][tuned_ ? tuned_->choice[i] : 0];
    programs_.push_back(
        std::make_unique<GpuProgram>(library, pin_library(folder_, program), *weights_, manifest));
    if (!lane_.records) programs_.back()->allow_numbers();
    if (tuned_ && !tuned_->rows.empty()) {
      programs_.back()->use_cublaslt(tuned_->cublaslt, tuned_->rows[i]);
    }
  }
  for (size_t i = 0; i < specs_.size(); ++i) {
    bool is_largest = true;
    for (const Sizes& sizes : scratch_sizes(specs_[i])) {
      const Rehearsal rehearsal = programs_[i]->rehearse(shapes_of(manifest.inputs, sizes));
      lane_.scratch_bytes = std::max(lane_.scratch_bytes, rehearsal.scratch_bytes);
      if (is_largest) launches_.push_back(rehearsal.launches);
      is_largest = false;
    }
  }
  try {
    void* stream = nullptr;
    driver.create_stream(&stream, kNonBlocking);
    lane_.stream = {driver, driver.destroy_stream, stream};
    lane_.scratch = allocate(driver, lane_.scratch_bytes);
  } catch (const GpuError& error) {
    throw error.retold(
        cat(label, ": ", lane_.scratch_bytes, " bytes of scratch memory: ", error.message));
  }
  buckets_.resize(specs_.size());
  text_buckets_.resize(specs_.size());
}

bool GpuPrograms::replays(const Bucket& bucket) const {
  // What would be copied with each run of a generative model is all of its caches.
  if (folder_.manifest().generation || mode_ == kDefault || !lane_.records) return false;
  for (size_t axis = 0; axis < bucket.axes.size(); ++axis) {
    const auto& padded = bucket.pad_axes;
    if (bucket.axes[axis].lo < bucket.axes[axis].hi &&
        std::find(padded.begin(), padded.end(), axis) == padded.end()) {
      return false;
    }
  }
  return true;
}

GpuBucket& GpuPrograms::ready(size_t bucket) {
  std::unique_ptr<GpuBucket>& slot = buckets_[bucket];
  if (slot == nullptr) {
    const Manifest& manifest = folder_.manifest();
    const bool often = mode_ == kPlanned && lane_.records && !replays(specs_[bucket]);
    auto made = std::make_unique<GpuBucket>(lane_, programs_[bucket].get(), manifest,
                                            specs_[bucket], often ? kMostGraphs : 0);
    // What is in memory by chance could be indices outside their tables.
    if (replays(specs_[bucket])) {
      made->capture(make_inputs(manifest, largest_sizes(specs_[bucket])));
    }
    slot = std::move(made);
  }
  return *slot;
}

GpuBucket& GpuPrograms::ready_for_text(size_t bucket) {
  std::unique_ptr<GpuBucket>& slot = text_buckets_[bucket];
  if (slot == nullptr) {
    slot = std::make_unique<GpuBucket>(
        lane_, programs_[bucket].get(), folder_.manifest(), specs_[bucket],
        mode_ == kDefault || !lane_.records ? 0 : kMostGraphs, text_.get());
  }
  return *slot;
}

void GpuPrograms::begin_text() {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_unbroken();
  try {
    const Driver& driver = *lane_.driver;
    const Driver::Current current(driver);
    if (text_ == nullptr) text_ = std::make_unique<const CacheMemory>(driver, folder_.manifest());
    text_->clear(lane_.stream.get());
  } catch (const GpuError& error) {
    if (error.sticky()) broken_.emplace(error);
    throw;
  }
}

void GpuPrograms::check_unbroken() const {
  Driver::check_not_forked();
  if (!broken_) return;
  throw broken_->retold(cat("nothing runs on this GPU in this process any more, since ",
                            broken_->name, " (", broken_->number, "): ", broken_->message),
                        "start the process again; if it happens again, run the self-test");
}

void GpuPrograms::run(size_t bucket, const std::vector<Array>& inputs,
                      const std::vector<Sizes>& shapes, Outputs* result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_unbroken();
  try {
    const Driver::Current current(*lane_.driver);
    GpuBucket& chosen =
        uses_own_text(folder_.manifest(), inputs) ? ready_for_text(bucket) : ready(bucket);
    chosen.run(inputs, shapes, result);
  } catch (const GpuError& error) {
    if (error.sticky()) broken_.emplace(error);
    const std::string where = bucket_text(folder_.manifest(), specs_[bucket]);
    throw error.retold(cat("bucket ", bucket, " (", where, "): ", error.message));
  }
}

bool GpuPrograms::warms_largest(size_t bucket) const {
  if (!tuned_ || tuned_->rows.empty()) return false;
  const std::vector<int64_t>& rows = tuned_->rows[bucket];
  return std::any_of(rows.begin(), rows.end(), [](int64_t item) { return item >= 0; });
}

std::vector<size_t> GpuPrograms::loaded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<size_t> result;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i] != nullptr) result.push_back(i);
  }
  return result;
}

void GpuPrograms::describe_cublaslt(JsonWriter* out) const {
  if (tuned_->rows.empty()) {
    out->raw("null");
    return;
  }
  out->open('{').key("version").raw(cat(tuned_->cublaslt)).key("rows").open('[');
  for (const std::vector<int64_t>& products : tuned_->rows) {
    out->open('[');
    for (const int64_t rows : products) out->raw(cat(rows));
    out->close(']');
  }
  std::string failure;
  for (const std::unique_ptr<GpuProgram>& program : programs_) {
    if (failure.empty()) failure = program->cublaslt_failure();
  }
  out->close(']').key("failure").string(failure).close('}');
}

void GpuPrograms::describe(JsonWriter* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Device& device = lane_.device;
  int64_t nbytes = 0, graphs = 0;
  for (const auto* const list : {&buckets_, &text_buckets_}) {
    for (const std::unique_ptr<GpuBucket>& item : *list) {
      if (item == nullptr) continue;
      nbytes += item->nbytes();
      graphs += static_cast<int64_t>(item->graphs());
    }
  }
  if (text_ != nullptr) nbytes += text_->nbytes();
  const GpuSpec& spec = *variant_.gpu;
  out->key("mode").string(mode_).key("gpu_precision").string(spec.precision);
  out->key("min_cosine").raw(spec.min_cosine ? cat(*spec.min_cosine) : "null");
  out->key("gpu").open('{').key("name").string(device.name);
  out->key("compute_capability").string(version_text(device.capability));
  out->key("sm_count").raw(cat(device.sm_count));
  out->key("integrated").raw(boolean(device.integrated));
  out->key("memory_bytes").raw(cat(device.memory));
  out->key("driver_version").string(cuda_version_text(device.driver));
  out->key("runtime_version").string("").close('}');
  out->key("weight_bytes").raw(cat(weights_->nbytes())).key("launches").open('{');
  for (size_t i = 0; i < launches_.size(); ++i) out->key(cat(i)).raw(cat(launches_[i]));
  out->close('}').key("tuned");
  if (tuned_) {
    out->open('{').key("choice").open('[');
    for (const size_t number : tuned_->choice) out->raw(cat(number));
    out->close(']').key("path").string(tuned_->path).key("cublaslt");
    describe_cublaslt(out);
    out->close('}');
  } else {
    out->raw("null");
  }
  out->key("zero_copy").raw(boolean(device.integrated));
  out->key("scratch_bytes").raw(cat(lane_.scratch_bytes));
  out->key("buffer_bytes").raw(cat(nbytes)).key("graphs").raw(cat(graphs));
  // The calling thread, which waits for the GPU.
  out->key("threads").raw("1").key("concurrency").raw("1");
}

}  // namespace ecr
