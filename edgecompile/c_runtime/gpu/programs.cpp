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
constexpr size_t kIdleTexts = 1;      // that keep their memory for the next ones
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
    below[axis] -= bucket.axes[axis].step;
    result.push_back(below);
  }
  return result;
}

std::string boolean(bool value) { return value ? "true" : "false"; }

}  // namespace

Array cut(const TensorSpec& spec, const Sizes& sizes, const uint8_t* data, const Sizes& shape) {
  if (shape.size() != sizes.size()) {
    throw GpuError(
        cat(spec.name, " has ", sizes.size(), " dimensions, the manifest has ", shape.size()));
  }
  Sizes part = sizes;
  for (size_t d = 0; d < part.size(); ++d) {
    if (shape[d] >= 0) part[d] = std::min(part[d], shape[d]);
  }
  Array array = make_array(*spec.type, part);
  copy_box(array.owned.data(), row_major(part), data, row_major(sizes), part, spec.type->size);
  return array;
}

GpuPrograms::GpuPrograms(const BundleFolder& folder, const Variant& variant,
                         const std::string& mode, bool check_weights,
                         const std::optional<Tuned>& choice)
    : folder_(folder), variant_(variant), mode_(mode) {
  const Manifest& manifest = folder_.manifest();
  specs_ = mode == kReduceOverhead && variant.gpu->graphs
               ? pad_everything(manifest, variant.gpu->padding)
               : manifest.buckets;
  const PinnedLibrary& pinned = pin_library(folder_, variant_.runtime);
  const std::string& file = manifest.weights.at(variant_.gpu->precision);
  const std::shared_ptr<Weights> weights = map_weights(folder_, file, check_weights);
  const std::string label = cat(folder_.path(), ": the variant ", variant_.name);
  if (const std::optional<GpuError> refusal = find_refusal(variant_)) {
    throw refusal->retold(cat(label, " can't run here: ", refusal->message));
  }
  const Driver& driver = Driver::load();
  shared_.driver = &driver;
  shared_.records = variant_.gpu->graphs;
  shared_.device = driver.describe();
  const GpuLibrary& library =
      *load_runtime<GpuLibrary>(pinned, file_name(variant_.runtime), shared_.driver);
  tuned_ = choice ? choice : find_tuned(manifest, variant_, shared_.device);
  const Driver::Current current(driver);
  weights_ = DeviceWeights::share(driver, *weights, manifest.files.at(file).sha256);
  shared_.scratch_bytes = kLeastScratch;
  const std::vector<std::vector<std::string>> lists = list_candidates(variant_);
  for (size_t i = 0; i < lists.size(); ++i) {
    const std::string& program = lists[i][tuned_ ? tuned_->choice[i] : 0];
    programs_.push_back(
        std::make_unique<GpuProgram>(library, pin_library(folder_, program), *weights_, manifest));
    if (!shared_.records) programs_.back()->allow_numbers();
    if (tuned_ && !tuned_->rows.empty()) {
      programs_.back()->use_cublaslt(tuned_->cublaslt, tuned_->rows[i]);
    }
  }
  for (size_t i = 0; i < specs_.size(); ++i) {
    bool is_largest = true;
    for (const Sizes& sizes : scratch_sizes(specs_[i])) {
      const Rehearsal rehearsal = programs_[i]->rehearse(shapes_of(manifest.inputs, sizes));
      shared_.scratch_bytes = std::max(shared_.scratch_bytes, rehearsal.scratch_bytes);
      if (is_largest) launches_.push_back(rehearsal.launches);
      is_largest = false;
    }
  }
  try {
    void* stream = nullptr;
    driver.create_stream(&stream, kNonBlocking);
    shared_.stream = {driver, driver.destroy_stream, stream};
    shared_.scratch = allocate(driver, shared_.scratch_bytes);
  } catch (const GpuError& error) {
    throw error.retold(
        cat(label, ": ", shared_.scratch_bytes, " bytes of scratch memory: ", error.message));
  }
  buckets_.resize(specs_.size());
}

bool GpuPrograms::replays(const Bucket& bucket) const {
  // What would be copied with each run of a generative model is all of its caches.
  if (folder_.manifest().generation || mode_ == kDefault || !shared_.records) return false;
  for (size_t axis = 0; axis < bucket.axes.size(); ++axis) {
    const auto& padded = bucket.pad_axes;
    if (bucket.axes[axis].lo < bucket.axes[axis].hi &&
        std::find(padded.begin(), padded.end(), axis) == padded.end()) {
      return false;
    }
  }
  return true;
}

GpuBucket& GpuPrograms::ready(size_t bucket, GpuText* text) {
  std::unique_ptr<GpuBucket>& slot = text == nullptr ? buckets_[bucket] : text->buckets[bucket];
  if (slot != nullptr) return *slot;
  const Manifest& manifest = folder_.manifest();
  const Bucket& spec = specs_[bucket];
  const bool one_graph = text == nullptr && replays(spec);
  // Without a text, "planned" alone has graphs of what comes often.
  const bool often =
      !one_graph && shared_.records && (text == nullptr ? mode_ == kPlanned : mode_ != kDefault);
  auto made = std::make_unique<GpuBucket>(shared_, programs_[bucket].get(), manifest, spec,
                                          often ? kMostGraphs : 0,
                                          text == nullptr ? nullptr : &text->caches);
  // What is in memory by chance could be indices outside their tables.
  if (one_graph) made->capture(make_inputs(manifest, largest_sizes(spec)));
  slot = std::move(made);
  return *slot;
}

template <class Body>
auto GpuPrograms::in_turn(Body&& body) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Driver::check_not_forked();
  if (broken_) throw explain_broken();
  try {
    const Driver::Current current(*shared_.driver);
    return body();
  } catch (const GpuError& error) {
    if (error.sticky() && !broken_) broken_.emplace(error);
    throw;
  }
}

GpuText* GpuPrograms::take_text() {
  return in_turn([this] {
    if (idle_.empty()) {
      texts_.push_back(std::make_unique<GpuText>(*shared_.driver, folder_.manifest()));
      idle_.push_back(texts_.back().get());
    }
    GpuText* const text = idle_.back();
    for (; idle_.size() > kIdleTexts + 1; idle_.pop_front()) {
      const auto is_spare = [this](const auto& item) { return item.get() == idle_.front(); };
      texts_.erase(std::find_if(texts_.begin(), texts_.end(), is_spare));
    }
    text->caches.clear(shared_.stream.get());
    idle_.pop_back();
    return text;
  });
}

void GpuPrograms::give_back(GpuText* text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(text);
}

void GpuPrograms::begin_text() {
  if (text_ == nullptr) {
    text_ = take_text();
  } else {
    in_turn([this] { text_->caches.clear(shared_.stream.get()); });
  }
}

GpuError GpuPrograms::explain_broken() const {
  return broken_->retold(cat("nothing runs on this GPU in this process any more, since ",
                             broken_->name, " (", broken_->number, "): ", broken_->message),
                         "start the process again; if it happens again, run the self-test");
}

std::string GpuPrograms::broken() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return broken_ ? explain_broken().message : "";
}

void GpuPrograms::load(size_t bucket, GpuText* text) { run(bucket, text, {}, nullptr); }

void GpuPrograms::run(size_t bucket, GpuText* text, const std::vector<Array>& inputs,
                      const Take& take) {
  in_turn([&] {
    try {
      GpuBucket& chosen = ready(bucket, text);
      if (take) chosen.run(inputs, take);
    } catch (const GpuError& error) {
      if (error.sticky()) broken_.emplace(error);  // without the bucket
      const std::string where = bucket_text(folder_.manifest(), specs_[bucket]);
      throw error.retold(cat("bucket ", bucket, " (", where, "): ", error.message));
    }
  });
}

void GpuPrograms::run(size_t bucket, const std::vector<Array>& inputs,
                      const std::vector<Sizes>& shapes, Outputs* result) {
  const Manifest& manifest = folder_.manifest();
  GpuText* const text = uses_own_text(manifest, inputs) ? text_ : nullptr;
  run(bucket, text, inputs, [&](size_t i, const Sizes& sizes, const uint8_t* data) {
    if (result != nullptr)
      result->arrays.push_back(cut(manifest.outputs[i], sizes, data, shapes[i]));
  });
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

void GpuPrograms::describe(JsonWriter* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Device& device = shared_.device;
  int64_t nbytes = 0, graphs = 0;
  const auto add = [&](const std::vector<std::unique_ptr<GpuBucket>>& list) {
    for (const std::unique_ptr<GpuBucket>& item : list) {
      if (item == nullptr) continue;
      nbytes += item->nbytes();
      graphs += static_cast<int64_t>(item->graphs());
    }
  };
  add(buckets_);
  for (const std::unique_ptr<GpuText>& text : texts_) {
    nbytes += text->caches.nbytes();
    add(text->buckets);
  }
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
    std::string failure;
    for (const std::unique_ptr<GpuProgram>& program : programs_) {
      if (failure.empty()) failure = program->cublaslt_failure();
    }
    out->open('{').key("path").string(tuned_->path);
    write_choice(*tuned_, out, failure);
    out->close('}');
  } else {
    out->raw("null");
  }
  out->key("zero_copy").raw(boolean(device.integrated));
  out->key("scratch_bytes").raw(cat(shared_.scratch_bytes));
  out->key("buffer_bytes").raw(cat(nbytes)).key("graphs").raw(cat(graphs));
  // The calling thread, which waits for the GPU.
  out->key("threads").raw("1").key("concurrency").raw("1");
}

}  // namespace ecr
