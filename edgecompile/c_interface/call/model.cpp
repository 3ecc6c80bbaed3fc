// An open bundle: the variant that was chosen, its programs, and running them.
#include "call/model.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/text.h"
#include "bundle/limits.h"

namespace ecr {
namespace {

constexpr int32_t kMaxThreads = 4096;
constexpr const char* kVariantVariable = "EDGECOMPILE_VARIANT";

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
}

// An empty variable is one that isn't set.
std::optional<std::string> wanted_variant(const ecr_options& options) {
  if (options.variant != nullptr) return options.variant;
  const char* const variable = std::getenv(kVariantVariable);
  if (variable == nullptr || *variable == '\0') return std::nullopt;
  return variable;
}

// Checks first, so that nothing is opened for options that are refused.
const std::string& checked(const std::string& path, const ecr_options& options) {
  check_options(options);
  return path;
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
      const bool is_axis = dim.kind == Dim::Kind::kAxis;
      const bool is_any = dim.kind == Dim::Kind::kAny;
      spec.least[d] = is_any ? 0 : is_axis ? manifest.axes[dim.axis].extent.lo : dim.size;
      spec.most[d] = is_any ? -1 : is_axis ? manifest.axes[dim.axis].extent.hi : dim.size;
    }
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace

Model::Call::Call(Model* model) : model_(*model) {
  const std::lock_guard<std::mutex> lock(model_.state_mutex_);
  if (model_.closed_) fail(ECR_CLOSED, model_.folder_.path() + ": the model is closed");
  ++model_.running_;
}

Model::Call::~Call() {
  const std::lock_guard<std::mutex> lock(model_.state_mutex_);
  if (--model_.running_ == 0 && model_.closed_) model_.idle_.notify_all();
}

Model::Model(const std::string& path, const ecr_options& options)
    : folder_(checked(path, options)), dispatcher_(folder_.manifest()) {
  const Manifest& manifest = folder_.manifest();
  folder_.check_files(options.verify == ECR_VERIFY_FULL);
  host_ = describe_host(folder_);
  variant_ =
      &manifest.variants[choose_variant(manifest, host_, wanted_variant(options), &refused_)];
  concurrency_ = options.concurrency > 0 ? options.concurrency : std::clamp(host_.cpus, 1, 4);
  // The file name is the SONAME.
  runtime_ = &RuntimeLibrary::load(pin_library(folder_, variant_->runtime),
                                   variant_->runtime.substr(variant_->runtime.rfind('/') + 1));
  if (options.threads > 0) runtime_->set_threads(options.threads);
  weights_ = map_weights(folder_, manifest.weights.at(manifest.precision),
                         // Under "full" too: what was hashed may have been exchanged since.
                         options.verify != ECR_VERIFY_FAST);
  programs_.resize(manifest.buckets.size());
  ready_.reset(new std::atomic<const Program*>[manifest.buckets.size()]());
  input_specs_ = make_specs(manifest, manifest.inputs);
  output_specs_ = make_specs(manifest, manifest.outputs);
  if (options.lazy == 0) warm_up();
}

void Model::warm_up() {
  for (size_t bucket = 0; bucket < programs_.size(); ++bucket) {
    const Program& loaded = program(bucket);
    const Sizes sizes = dispatcher_.hint_sizes(bucket);
    // Asked before they are made: a system may end a process that asks for more than there is.
    const int64_t needed = input_bytes(folder_.manifest(), sizes);
    const std::string doing = cat("warming up bucket ", bucket);
    if (host_.memory > 0 && needed > host_.memory / 2) {
      fail(ECR_HOST,
           cat(doing, ": the inputs have ", needed,
               " bytes, more than half of this machine's memory of ", host_.memory, " bytes"),
           "open the bundle without warm-up, or build it for smaller sizes");
    }
    try {
      loaded.run(make_inputs(folder_.manifest(), sizes));
    } catch (const std::bad_alloc&) {
      fail_for_memory(doing, needed);
    }
  }
}

const Program& Model::program(size_t bucket) {
  const Program* const ready = ready_[bucket].load(std::memory_order_acquire);
  if (ready != nullptr) return *ready;
  const std::lock_guard<std::mutex> lock(load_mutex_);
  std::unique_ptr<const Program>& slot = programs_[bucket];
  if (slot == nullptr) {
    const Manifest& manifest = folder_.manifest();
    auto loaded = std::make_unique<const Program>(
        *runtime_, pin_library(folder_, variant_->programs[bucket]), weights_, concurrency_);
    const auto n_inputs = static_cast<int64_t>(manifest.inputs.size());
    const auto n_outputs = static_cast<int64_t>(manifest.outputs.size());
    if (loaded->input_count() != n_inputs || loaded->output_count() != n_outputs) {
      fail(ECR_BUNDLE, cat(loaded->label(), ": has ", loaded->input_count(), " inputs and ",
                           loaded->output_count(), " outputs, the manifest has ", n_inputs, " and ",
                           n_outputs, " [program-signature]"));
    }
    slot = std::move(loaded);
    ready_[bucket].store(slot.get(), std::memory_order_release);
  }
  return *slot;
}

std::unique_ptr<Outputs> Model::run(const ecr_tensor* inputs, int64_t count,
                                    std::optional<int32_t> wanted) {
  const Call call(this);
  const Manifest& manifest = folder_.manifest();
  if (wanted && (*wanted < 0 || *wanted >= static_cast<int64_t>(programs_.size()))) {
    fail(ECR_INPUT, cat("there is no bucket ", *wanted, ", only 0..", programs_.size() - 1));
  }
  const CheckedInputs checked_inputs = check_inputs(manifest, inputs, count);
  const Sizes& sizes = checked_inputs.sizes;
  size_t bucket = 0;
  if (wanted) {
    bucket = static_cast<size_t>(*wanted);
    dispatcher_.check(bucket, sizes);
  } else {
    bucket = dispatcher_.choose(sizes);
  }
  if (manifest.generation) {
    const Bucket& chosen = manifest.buckets[bucket];
    const size_t length = manifest.generation->length;
    check_rows(manifest, checked_inputs, chosen.padded ? chosen.axes[length].hi : sizes[length]);
  }
  const Program& loaded = program(bucket);
  auto result = std::make_unique<Outputs>();
  result->native = loaded.run(dispatcher_.pad(bucket, checked_inputs.arrays, sizes));
  const auto n_outputs = static_cast<int64_t>(manifest.outputs.size());
  if (result->native->count() != n_outputs) {
    fail(ECR_NATIVE, cat(loaded.label(), ": gave ", result->native->count(),
                         " outputs, the manifest has ", n_outputs));
  }
  bool borrows = false;
  for (int64_t i = 0; i < n_outputs; ++i) {
    const TensorSpec& spec = manifest.outputs[static_cast<size_t>(i)];
    Array array = result->native->take(i, shape_of(spec, sizes), loaded.label());
    if (array.type != spec.type) {
      fail(ECR_NATIVE, cat(loaded.label(), ": the output ", spec.name, " has dtype ",
                           array.type->name, ", the manifest says ", spec.type->name));
    }
    borrows = borrows || array.owned.data() == nullptr;
    result->names.push_back(spec.name);
    result->arrays.push_back(std::move(array));
  }
  if (!borrows) result->native.reset();
  for (size_t i = 0; i < result->arrays.size(); ++i) {
    const Array& array = result->arrays[i];
    ecr_tensor tensor = {};
    tensor.name = result->names[i].c_str();
    tensor.data = array.data;
    tensor.nbytes = count_elements(array.sizes) * array.type->size;
    tensor.dtype = array.type->code;
    tensor.ndim = static_cast<int32_t>(array.sizes.size());
    std::copy(array.sizes.begin(), array.sizes.end(), tensor.sizes);
    result->views.push_back(tensor);
  }
  result->count = n_outputs;
  result->tensors = result->views.data();
  return result;
}

ecr_signature Model::signature() {
  const Call call(this);
  const Manifest& manifest = folder_.manifest();
  ecr_signature signature = {};
  signature.name = manifest.name.c_str();
  signature.variant = variant_->name.c_str();
  signature.n_inputs = static_cast<int32_t>(input_specs_.size());
  signature.n_outputs = static_cast<int32_t>(output_specs_.size());
  signature.n_buckets = static_cast<int32_t>(manifest.buckets.size());
  signature.inputs = input_specs_.data();
  signature.outputs = output_specs_.data();
  signature.atol = manifest.atol;
  signature.rtol = manifest.rtol;
  return signature;
}

void Model::close() {
  {
    std::unique_lock<std::mutex> lock(state_mutex_);
    if (closed_) return;
    closed_ = true;
    idle_.wait(lock, [this] { return running_ == 0; });
  }
  programs_.clear();
  weights_.reset();
  runtime_->trim();
}

}  // namespace ecr
