// An open bundle: the variant that was chosen, its programs, and running them.
#include "call/model.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/text.h"
#include "bundle/limits.h"
#include "call/cpu_programs.h"
#include "gpu/programs.h"
#include "gpu/variant.h"

namespace ecr {
namespace {

constexpr int32_t kMaxThreads = 4096;
constexpr const char* kVariantVariable = "EDGECOMPILE_VARIANT";
constexpr const char* kModeVariable = "EDGECOMPILE_MODE";
constexpr const char* kFallbackVariable = "EDGECOMPILE_FALLBACK";

// What an option or, where that is null, a variable of the environment says. An empty variable is
// one that isn't set.
std::optional<std::string> wanted(const char* option, const char* name) {
  if (option != nullptr) return option;
  const std::string value = variable(name);
  if (value.empty()) return std::nullopt;
  return value;
}

std::string mode_of(const ecr_options& options) {
  return wanted(options.mode, kModeVariable).value_or(kPlanned);
}

void check_options(const ecr_options& options) {
  if (options.verify < ECR_VERIFY_AUTO || options.verify > ECR_VERIFY_FULL) {
    fail(ECR_INPUT, cat("verify is ", options.verify, ", must be one of ECR_VERIFY_..."));
  }
  const auto check = [](const char* name, int32_t value) {
    if (value < 0 || value > kMaxThreads) {
      fail(ECR_INPUT, cat(name, " is ", value, ", must be 0 or from 1 to ", kMaxThreads));
    }
  };
  check("threads", options.threads);
  check("concurrency", options.concurrency);
  const std::string fallback = wanted(options.fallback, kFallbackVariable).value_or("cpu");
  if (fallback != "cpu") fail(ECR_INPUT, cat("fallback is ", quoted(fallback), ", must be cpu"));
  const std::string mode = mode_of(options);
  if (mode != kPlanned && mode != kDefault && mode != kReduceOverhead) {
    fail(ECR_INPUT, cat("mode is ", quoted(mode), ", must be one of ", kPlanned, ", ", kDefault,
                        ", ", kReduceOverhead));
  }
}

// Checks first, so that nothing is opened for options that are refused.
const std::string& checked(const std::string& path, const ecr_options& options) {
  check_options(options);
  return path;
}

Strings without_gpu(const std::string& reason) {
  return {{kTritonBackend, reason}, {kTensorRtBackend, reason}};
}

// The same error, which says that the bundle has a variant for the CPU, where it does.
GpuError with_hint(const GpuError& error, const Manifest& manifest, const Host& host) {
  std::vector<Refusal> unused;
  size_t other = 0;
  try {
    other = choose_variant(manifest, host, std::nullopt, without_gpu(""), &unused);
  } catch (const Error&) {
    return error;
  }
  return error.retold(
      error.message,
      cat(error.hint, error.hint.empty() ? "" : "; ", "or let the CPU run it, with the variant ",
          manifest.variants[other].name, ": the option fallback, or ", kFallbackVariable, "=cpu"));
}

std::vector<ecr_spec> make_specs(const Manifest& manifest, const std::vector<TensorSpec>& tensors) {
  std::vector<ecr_spec> specs;
  for (const TensorSpec& tensor : tensors) {
    ecr_spec spec = {};
    spec.name = tensor.name.c_str();
    spec.dtype = tensor.type->code;
    spec.ndim = static_cast<int32_t>(tensor.shape.size());
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      const Dim& dim = tensor.shape[d];
      const Extent span = dim.kind == Dim::Kind::kAny    ? Extent{0, -1}
                          : dim.kind == Dim::Kind::kAxis ? manifest.axes[dim.axis].extent
                          : dim.kind == Dim::Kind::kSum  ? dim.sum.span(manifest.axes)
                                                         : Extent{dim.size, dim.size};
      spec.least[d] = span.lo;
      spec.most[d] = span.hi;
    }
    specs.push_back(spec);
  }
  return specs;
}

// Lets a program for the CPU see of the model's own caches what Python lets it see: all rows that
// count, and so many more that the next runs see as many.
void cut_caches(const Manifest& manifest, const Bucket& bucket, CheckedInputs* inputs) {
  constexpr int64_t kRowsStep = 64;
  const Generation& spec = *manifest.generation;
  if (!spec.context) return;
  const int64_t length = bucket.padded ? bucket.axes[spec.length].hi : inputs->sizes[spec.length];
  const int64_t end = first_row(manifest, *inputs) + length;
  int64_t& rows = inputs->sizes[*spec.context];
  rows = std::min(
      std::max((end + kRowsStep - 1) / kRowsStep * kRowsStep, bucket.axes[*spec.context].lo), rows);
  for (size_t i = 0; i < inputs->arrays.size(); ++i) {
    const TensorSpec& input = manifest.inputs[i];
    // A state of a fixed size has no such axis.
    const bool grows = spec.is_cache(input.name) && input.shape[0].kind == Dim::Kind::kAxis;
    if (grows) inputs->arrays[i].sizes[0] = rows;
  }
}

}  // namespace

std::shared_lock<std::shared_mutex> Model::enter() {
  std::shared_lock<std::shared_mutex> call(calls_);
  if (programs_ == nullptr) fail(ECR_CLOSED, folder_.path() + ": the model is closed");
  return call;
}

Model::Model(const std::string& path, const ecr_options& options)
    : folder_(checked(path, options)) {
  const Manifest& manifest = folder_.manifest();
  folder_.check_files(options.verify == ECR_VERIFY_FULL);
  host_ = describe_host(folder_);
  input_specs_ = make_specs(manifest, manifest.inputs);
  output_specs_ = make_specs(manifest, manifest.outputs);
  try {
    open(options, {});
    return;
  } catch (const GpuError& error) {
    // A variant that was asked for by name isn't replaced by another one.
    const bool replaces =
        wanted(options.fallback, kFallbackVariable) && !wanted(options.variant, kVariantVariable);
    if (!replaces && error.code() == ECR_NO_GPU) throw with_hint(error, manifest, host_);
    if (!replaces) throw;
    fallback_ = "can't be used here: " + error.message;
  }
  open(options, without_gpu(fallback_));
}

void Model::open(const ecr_options& options, const Strings& without) {
  const Manifest& manifest = folder_.manifest();
  const std::optional<std::string> name = wanted(options.variant, kVariantVariable);
  Strings unusable = without;
  if (!name && without.empty()) unusable = judge_variants(manifest, host_);
  refused_.clear();
  programs_.reset();
  variant_ = &manifest.variants[choose_variant(manifest, host_, name, unusable, &refused_)];
  // Under "full" too: what was hashed may have been exchanged since.
  const bool check_weights = options.verify != ECR_VERIFY_FAST;
  std::vector<Bucket> buckets = manifest.buckets;
  if (variant_->gpu) {
    auto programs =
        std::make_unique<GpuPrograms>(folder_, *variant_, mode_of(options), check_weights);
    buckets = programs->buckets();
    programs_ = std::move(programs);
  } else {
    const int32_t concurrency =
        options.concurrency > 0 ? options.concurrency : std::clamp(host_.cpus, 1, 4);
    programs_ = std::make_unique<CpuPrograms>(folder_, *variant_, options.threads, concurrency,
                                              check_weights);
  }
  dispatcher_.emplace(manifest, std::move(buckets));
  if (options.lazy == 0) warm_up();
}

void Model::warm_up() {
  const Manifest& manifest = folder_.manifest();
  // Asked before they are made: a system may end a process that asks for more than there is.
  const auto fits = [this, &manifest](const Sizes& sizes) {
    return host_.memory <= 0 || input_bytes(manifest, sizes) <= host_.memory / 2;
  };
  for (size_t bucket = 0; bucket < manifest.buckets.size(); ++bucket) {
    const Sizes sizes = dispatcher_->hint_sizes(bucket);
    if (!fits(sizes)) {
      fail(ECR_HOST,
           cat("warming up bucket ", bucket, ": the inputs have ", input_bytes(manifest, sizes),
               " bytes, more than half of this machine's memory of ", host_.memory, " bytes"),
           "open the bundle without warm-up, or build it for smaller sizes");
    }
    warm_up(bucket, sizes);
    const Sizes largest = largest_sizes(manifest.buckets[bucket]);
    if (largest != sizes && programs_->warms_largest(bucket) && fits(largest)) {
      warm_up(bucket, largest);
    }
  }
}

void Model::warm_up(size_t bucket, const Sizes& sizes) {
  const Manifest& manifest = folder_.manifest();
  std::vector<Array> inputs = make_inputs(manifest, sizes);
  // On a GPU those are the runs that will come; others would only take memory.
  const std::optional<Generation>& spec = manifest.generation;
  if (spec && variant_->gpu) {
    if (bucket == 0) programs_->begin_text();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TensorSpec& input = manifest.inputs[i];
      const int64_t rows = context_rows(manifest);
      if (spec->is_cache(input.name)) inputs[i] = own_cache(manifest, input, rows);
    }
  }
  try {
    programs_->run(bucket, inputs, shapes_of(manifest.outputs, sizes), nullptr);
  } catch (const std::bad_alloc&) {
    fail_for_memory(cat("warming up bucket ", bucket), input_bytes(manifest, sizes));
  }
}

void Model::begin_run(const CheckedInputs& inputs) {
  const Generation& spec = *folder_.manifest().generation;
  const int64_t row = first_row(folder_.manifest(), inputs);
  if (row > text_rows_) {
    fail(ECR_INPUT,
         cat("input ", spec.position, ": ", row, " doesn't follow the ", text_rows_,
             " rows of the model's own caches"),
         "begin a text at row 0, or give the caches");
  }
  if (spec.has_states && row != 0 && row != text_rows_) {
    fail(ECR_INPUT,
         cat("input ", spec.position, ": ", row, " isn't behind the ", text_rows_,
             " tokens of the model's own text, whose states can't go back"),
         "begin a text at row 0, or give the caches");
  }
  // Until the run succeeded nothing from there on counts, and of states nothing at all.
  text_rows_ = spec.has_states ? 0 : row;
  if (row == 0) programs_->begin_text();
}

std::unique_ptr<Outputs> Model::run(const ecr_tensor* inputs, int64_t count,
                                    std::optional<int32_t> wanted) {
  const auto call = enter();
  const Manifest& manifest = folder_.manifest();
  const auto n_buckets = static_cast<int64_t>(manifest.buckets.size());
  if (wanted && (*wanted < 0 || *wanted >= n_buckets)) {
    fail(ECR_INPUT, cat("there is no bucket ", *wanted, ", only 0..", n_buckets - 1));
  }
  CheckedInputs checked_inputs = check_inputs(manifest, inputs, count);
  Sizes& sizes = checked_inputs.sizes;
  size_t bucket = 0;
  if (wanted) {
    bucket = static_cast<size_t>(*wanted);
    dispatcher_->check(bucket, sizes);
  } else {
    bucket = dispatcher_->choose(sizes);
  }
  const Bucket* filled = &dispatcher_->bucket(bucket);
  if (manifest.generation) {
    const size_t length = manifest.generation->length;
    const auto check = [&](const Bucket& item) {
      check_rows(manifest, checked_inputs, item.padded ? item.axes[length].hi : sizes[length]);
    };
    try {
      check(*filled);
    } catch (const Error&) {
      // A mode may fill up more than the program needs, and the caches have no room for that.
      filled = &manifest.buckets[bucket];
      check(*filled);
    }
  }
  std::unique_lock<std::mutex> turn;
  if (checked_inputs.own_text) {
    turn = std::unique_lock<std::mutex>(text_mutex_);
    begin_run(checked_inputs);
    if (!variant_->gpu) cut_caches(manifest, *filled, &checked_inputs);
  }
  auto result = std::make_unique<Outputs>();
  programs_->run(bucket, dispatcher_->pad(*filled, checked_inputs.arrays, sizes),
                 shapes_of(manifest.outputs, sizes), result.get());
  if (checked_inputs.own_text) {
    text_rows_ = first_row(manifest, checked_inputs) + tokens_of(manifest, checked_inputs);
  }
  for (const TensorSpec& spec : manifest.outputs) result->names.push_back(spec.name);
  for (size_t i = 0; i < result->arrays.size(); ++i) {
    result->views.push_back(view_of(result->arrays[i]));
    result->views.back().name = result->names[i].c_str();
  }
  result->count = static_cast<int64_t>(result->views.size());
  result->tensors = result->views.data();
  return result;
}

const Tolerance& Model::tolerance() const {
  return variant_->gpu ? variant_->gpu->tolerance : folder_.manifest().tolerance;
}

ecr_signature Model::signature() {
  const auto call = enter();
  const Manifest& manifest = folder_.manifest();
  ecr_signature signature = {};
  signature.name = manifest.name.c_str();
  signature.variant = variant_->name.c_str();
  signature.n_inputs = static_cast<int32_t>(input_specs_.size());
  signature.n_outputs = static_cast<int32_t>(output_specs_.size());
  signature.n_buckets = static_cast<int32_t>(manifest.buckets.size());
  signature.inputs = input_specs_.data();
  signature.outputs = output_specs_.data();
  signature.atol = tolerance().atol;
  signature.rtol = tolerance().rtol;
  signature.min_cosine = variant_->gpu ? variant_->gpu->min_cosine.value_or(-1) : -1;
  return signature;
}

void Model::close() {
  const std::unique_lock<std::shared_mutex> lock(calls_);
  programs_.reset();
}

}  // namespace ecr
