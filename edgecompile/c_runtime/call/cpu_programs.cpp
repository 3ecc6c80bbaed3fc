// The programs of a variant for the CPU.
#include "call/cpu_programs.h"

#include "base/text.h"
#include "call/inputs.h"

namespace ecr {

CpuPrograms::CpuPrograms(const BundleFolder& folder, const Variant& variant, int32_t threads,
                         int32_t concurrency, bool check_weights)
    : folder_(folder), variant_(variant), concurrency_(concurrency) {
  const Manifest& manifest = folder_.manifest();
  runtime_ = load_runtime<RuntimeLibrary>(pin_library(folder_, variant_.runtime),
                                          file_name(variant_.runtime));
  if (threads > 0) runtime_->set_threads(threads);
  weights_ = map_weights(folder_, manifest.weights.at(manifest.precision), check_weights);
  programs_.resize(manifest.buckets.size());
  ready_.reset(new std::atomic<const Program*>[manifest.buckets.size()]());
}

CpuPrograms::~CpuPrograms() {
  programs_.clear();
  weights_.reset();
  if (runtime_ != nullptr) runtime_->trim();
}

const Program& CpuPrograms::program(size_t bucket) {
  const Program* const ready = ready_[bucket].load(std::memory_order_acquire);
  if (ready != nullptr) return *ready;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<const Program>& slot = programs_[bucket];
  if (slot == nullptr) {
    auto loaded = std::make_unique<const Program>(
        *runtime_, pin_library(folder_, variant_.programs[bucket]), weights_, concurrency_);
    check_counts(loaded->label(), folder_.manifest(), loaded->input_count(),
                 loaded->output_count());
    slot = std::move(loaded);
    ready_[bucket].store(slot.get(), std::memory_order_release);
  }
  return *slot;
}

void CpuPrograms::run(size_t bucket, const std::vector<Array>& inputs,
                      const std::vector<Sizes>& shapes, Outputs* result) {
  const Program& loaded = program(bucket);
  std::vector<Array> given;
  if (uses_own_text(folder_.manifest(), inputs)) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool is_own = text_[i].data() != nullptr;
      given.push_back(
          {inputs[i].type, inputs[i].sizes, is_own ? text_[i].data() : inputs[i].data, {}});
    }
  }
  std::unique_ptr<ProgramOutputs> outputs = loaded.run(given.empty() ? inputs : given);
  if (result == nullptr) return;
  if (outputs->count() != static_cast<int64_t>(shapes.size())) {
    fail(ECR_NATIVE, cat(loaded.label(), ": gave ", outputs->count(), " outputs, the manifest has ",
                         shapes.size()));
  }
  bool borrows = false;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const TensorSpec& spec = folder_.manifest().outputs[i];
    Array array = outputs->take(static_cast<int64_t>(i), shapes[i], loaded.label());
    if (array.type != spec.type) {
      fail(ECR_NATIVE, cat(loaded.label(), ": the output ", spec.name, " has dtype ",
                           array.type->name, ", the manifest says ", spec.type->name));
    }
    borrows = borrows || array.owned.data() == nullptr;
    result->arrays.push_back(std::move(array));
  }
  if (borrows) result->native = std::move(outputs);
}

void CpuPrograms::begin_text() {
  const Manifest& manifest = folder_.manifest();
  const int64_t rows = context_rows(manifest);
  text_.clear();
  for (const TensorSpec& spec : manifest.inputs) {
    text_.emplace_back();
    if (!manifest.generation->is_cache(spec.name)) continue;
    const Array cache = own_cache(manifest, spec, rows);
    text_.back() = Buffer::zeros(count_elements(cache.sizes) * cache.type->size);
  }
}

std::vector<size_t> CpuPrograms::loaded() {
  std::vector<size_t> result;
  for (size_t i = 0; i < programs_.size(); ++i) {
    if (ready_[i].load(std::memory_order_acquire) != nullptr) result.push_back(i);
  }
  return result;
}

void CpuPrograms::describe(JsonWriter* out) {
  out->key("mode").string("default").key("threads").raw(cat(runtime_->threads()));
  out->key("concurrency").raw(cat(concurrency_));
}

}  // namespace ecr
