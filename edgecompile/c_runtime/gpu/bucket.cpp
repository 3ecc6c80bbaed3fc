// Runs of one bucket on a GPU.
#include "gpu/bucket.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace ecr {
namespace {

// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate meanwhile.
constexpr int kThreadLocal = 1;
// After so many runs of one shape a graph of it pays: it takes about as long as three of them.
constexpr int kGraphAfter = 8;
constexpr size_t kMostCounted = 4096;

bool has_one_length(const Manifest& manifest, const Bucket& bucket) {
  const size_t length = manifest.generation->length;
  const auto& padded = bucket.pad_axes;
  return bucket.axes[length].lo == bucket.axes[length].hi ||
         std::find(padded.begin(), padded.end(), length) != padded.end();
}

int64_t bytes_of(const ElementType* type, const Sizes& sizes) {
  return count_elements(sizes) * type->size;
}

}  // namespace

Sizes largest_sizes(const Bucket& bucket) {
  Sizes sizes;
  for (const Extent& extent : bucket.axes) sizes.push_back(extent.hi);
  return sizes;
}

GpuBucket::GpuBucket(const SharedStream& shared, GpuProgram* program, const Manifest& manifest,
                     const Bucket& bucket, size_t most_graphs, const CacheMemory* text)
    : shared_(shared),
      program_(*program),
      manifest_(manifest),
      text_(text),
      most_graphs_(most_graphs),
      graph_after_(text != nullptr && has_one_length(manifest, bucket) ? 1 : kGraphAfter) {
  program_.load(shared_.device.capability);
  const Sizes largest = largest_sizes(bucket);
  largest_ = shapes_of(manifest_.inputs, largest);
  plan_ = arrange(largest_);
  check_outputs(largest);
  staging_ = std::make_unique<const Staging>(*shared_.driver, plan_.end, shared_.device.integrated);
}

bool GpuBucket::is_cache(size_t input) const {
  return manifest_.generation && manifest_.generation->is_cache(manifest_.inputs[input].name);
}

GpuBucket::Plan GpuBucket::arrange(const std::vector<Sizes>& inputs) {
  Rehearsal rehearsal = program_.rehearse(inputs, this);
  if (rehearsal.scratch_bytes > shared_.scratch_bytes) {
    throw GpuError(cat("takes ", rehearsal.scratch_bytes, " bytes of scratch memory at ",
                       join(inputs, sizes_text), ", more than the ", shared_.scratch_bytes,
                       " of its largest shapes"));
  }
  Plan plan;
  const auto place = [&plan](const TensorSpec& spec, const Sizes& sizes) {
    const int64_t start = plan.end;
    const int64_t nbytes = std::max<int64_t>(bytes_of(spec.type, sizes), 1);
    plan.end += (nbytes + kAlignment - 1) / kAlignment * kAlignment;
    return start;
  };
  plan.sources.resize(inputs.size());
  enum { kLarge, kSmall, kCache };
  for (const int part : {kLarge, kSmall, kCache}) {
    if (part == kSmall) plan.ahead = plan.end;
    plan.fetched = plan.end;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TensorSpec& spec = manifest_.inputs[i];
      const bool large = bytes_of(spec.type, inputs[i]) >= Copier::kLarge;
      if (part != (is_cache(i) ? kCache : large ? kLarge : kSmall) || is_there(i)) continue;
      plan.sources[i] = place(spec, inputs[i]);
    }
  }
  plan.sent = plan.end;
  for (size_t i = 0; i < rehearsal.outputs.size(); ++i) {
    plan.targets.push_back(place(manifest_.outputs[i], rehearsal.outputs[i]));
  }
  if (staging_ != nullptr && plan.end > staging_->nbytes()) {
    throw GpuError(cat("inputs and outputs at ", join(inputs, sizes_text), " have ", plan.end,
                       " bytes, more than the ", staging_->nbytes(), " of the largest shapes"));
  }
  plan.inputs = inputs;
  plan.outputs = std::move(rehearsal.outputs);
  return plan;
}

void GpuBucket::check_outputs(const Sizes& largest) const {
  std::string problems;
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    const Sizes& shape = plan_.outputs[i];
    const Sizes wanted = shape_of(manifest_.outputs[i], largest);
    const bool fits =
        shape.size() == wanted.size() &&
        std::equal(shape.begin(), shape.end(), wanted.begin(),
                   [](int64_t size, int64_t want) { return want < 0 || size == want; });
    if (fits) continue;
    const auto size_text = [](int64_t size) { return size < 0 ? std::string("?") : cat(size); };
    problems += cat(problems.empty() ? "" : "; ", manifest_.outputs[i].name, " has shape ",
                    sizes_text(shape), ", the manifest says [", join(wanted, size_text), "]");
  }
  if (!problems.empty()) throw GpuError(problems);
}

void GpuBucket::run(const std::vector<Array>& inputs, const Take& take) {
  std::vector<Sizes> given;
  for (const Array& array : inputs) given.push_back(array.sizes);
  const Plan& plan = find_plan(given);
  run_on_gpu(plan, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t nbytes = static_cast<size_t>(bytes_of(inputs[i].type, inputs[i].sizes));
    if (!is_cache(i) || is_there(i) || nbytes == 0) continue;
    // Caches are the caller's to be written to.
    std::memcpy(const_cast<uint8_t*>(inputs[i].data), staging_->host() + plan.sources[i], nbytes);
  }
  for (size_t i = 0; i < plan.targets.size(); ++i) {
    take(i, results_.empty() ? plan.outputs[i] : results_[i], staging_->host() + plan.targets[i]);
  }
  if (most_graphs_ != 0 && plan.graph.get() == nullptr) keep_often(given);
}

const GpuBucket::Plan& GpuBucket::find_plan(const std::vector<Sizes>& inputs) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(),
                                 [&inputs](const Plan& plan) { return plan.inputs == inputs; });
  if (kept != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, kept);
    return kept_.front();
  }
  if (inputs != plan_.inputs) {
    if (plan_.graph.get() != nullptr) throw GpuError("its graph takes other shapes");
    plan_ = {};  // Until it is known to have worked, no shape counts as set.
    plan_ = arrange(inputs);
  }
  return plan_;
}

void GpuBucket::keep_often(const std::vector<Sizes>& inputs) {
  if (++seen_[inputs] < (inputs == largest_ ? graph_after_ : kGraphAfter)) {
    if (seen_.size() > kMostCounted) seen_.clear();
    return;
  }
  seen_.erase(inputs);
  try {
    plan_.graph = record(plan_);
  } catch (const GpuError& error) {
    if (error.sticky()) throw;
    most_graphs_ = 0;  // The run itself succeeded, and so will the next ones without graphs.
    return;
  }
  kept_.push_front(std::move(plan_));
  plan_ = {};
  if (kept_.size() > most_graphs_) kept_.pop_back();
}

void GpuBucket::take_inputs(const std::vector<Array>& inputs, const Plan& plan) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t start = plan.sources[i], nbytes = bytes_of(inputs[i].type, inputs[i].sizes);
    if (nbytes == 0 || is_there(i)) continue;
    uint8_t* const here = staging_->host() + start;
    if (start >= plan.ahead) {
      std::memcpy(here, inputs[i].data, static_cast<size_t>(nbytes));
      continue;
    }
    shared_.copier->copy(here, inputs[i].data, nbytes, [&](int64_t from, int64_t to) {
      staging_->send(start + from, start + to, shared_.stream.get());
    });
  }
}

void GpuBucket::run_on_gpu(const Plan& plan, const std::vector<Array>& inputs) {
  const Driver& driver = *shared_.driver;
  try {
    take_inputs(inputs, plan);
    plan.graph.get() != nullptr ? driver.launch(plan.graph.get(), shared_.stream.get())
                                : queue(plan);
    driver.synchronize(shared_.stream.get());
  } catch (const std::exception& failure) {
    const auto* const known = dynamic_cast<const GpuError*>(&failure);
    if (known != nullptr && known->sticky()) throw;
    // Nothing may use the memory any more. A program may only know that CUDA failed: then the wait
    // tells how.
    try {
      driver.synchronize(shared_.stream.get());
    } catch (const GpuError& error) {
      if (known != nullptr && known->number == 0) {
        throw error.retold(cat(known->message, "; ", error.message));
      }
    }
    throw;
  }
}

void GpuBucket::queue(const Plan& plan) {
  void* const stream = shared_.stream.get();
  std::vector<uint64_t> sources, targets;
  for (size_t i = 0; i < plan.sources.size(); ++i) {
    sources.push_back(is_there(i) ? text_->address(i)
                                  : staging_->device() + static_cast<Address>(plan.sources[i]));
  }
  for (const int64_t offset : plan.targets) {
    targets.push_back(staging_->device() + static_cast<Address>(offset));
  }
  // It may have the shapes of another user, with or without the caches of a text.
  if (program_.user() != this) program_.rehearse(plan.inputs, this);
  staging_->send(plan.ahead, plan.sent, stream);
  program_.enqueue(sources, targets, shared_.scratch.get(), shared_.scratch_bytes, stream);
  if (!shared_.records) results_ = program_.results();
  staging_->fetch(plan.fetched, plan.end, stream);
}

void GpuBucket::capture(const std::vector<Array>& inputs) {
  run(inputs, [](size_t, const Sizes&, const uint8_t*) {});
  try {
    plan_.graph = record(plan_);
  } catch (const GpuError& error) {
    throw error.retold("its run can't be captured as a graph: " + error.message,
                       error.hint.empty() ? "open the bundle with mode=\"default\"" : error.hint);
  }
}

Owned<void*> GpuBucket::record(const Plan& plan) {
  try {
    return record_once(plan);
  } catch (const GpuError& error) {
    if (error.sticky() || !program_.drop_cublaslt()) throw;
  }
  return record_once(plan);
}

Owned<void*> GpuBucket::record_once(const Plan& plan) {
  const Driver& driver = *shared_.driver;
  void* const stream = shared_.stream.get();
  void* found = nullptr;
  driver.begin_capture(stream, kThreadLocal);
  try {
    queue(plan);
  } catch (...) {
    try {
      driver.end_capture(stream, &found);
    } catch (const GpuError&) {  // What spoilt the capture says more.
    }
    const Owned<void*> graph(driver, driver.destroy_graph, found);
    throw;
  }
  driver.end_capture(stream, &found);
  const Owned<void*> graph(driver, driver.destroy_graph, found);
  void* executable = nullptr;
  driver.instantiate(&executable, graph.get(), 0);
  return {driver, driver.destroy_executable, executable};
}

}  // namespace ecr
