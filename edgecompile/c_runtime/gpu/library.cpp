// The native runtime library for GPUs, and programs through it.
#include "gpu/library.h"

#include "base/text.h"
#include "bundle/limits.h"

namespace ecr {
namespace {

constexpr int32_t kAbiVersion = 1;
// The rest of the interface, which Python calls: this code has their work. Libraries from before
// 0.2.0 lack them.
constexpr const char* kOfVariants[] = {
    "ec_gpu_last_error", "ec_gpu_open", "ec_gpu_read_tuning", "ec_gpu_take_text",
    "ec_gpu_give_back",  "ec_gpu_load", "ec_gpu_run",         "ec_gpu_results_free",
    "ec_gpu_describe",   "ec_gpu_close"};

}  // namespace

GpuLibrary::GpuLibrary(void* handle, const std::string& label, const Driver* driver)
    : label_(label), driver_(*driver) {
  Functions functions(handle);
  functions.find(&abi_version_, "ec_cuda_abi_version");
  functions.find(&last_error_, "ec_last_error");
  functions.find(&last_number_, "ec_cuda_last_error");
  functions.find(&load_driver_, "ec_cuda_load_driver");
  functions.find(&open_, "ec_cuda_program_open");
  functions.find(&input_count_, "ec_cuda_program_input_count");
  functions.find(&output_count_, "ec_cuda_program_output_count");
  functions.find(&plan_, "ec_cuda_program_plan");
  functions.find(&load_, "ec_cuda_program_load");
  functions.find(&enqueue_, "ec_cuda_program_enqueue");
  functions.find(&close_, "ec_cuda_program_close");
  functions.find(&allow_numbers_, "ec_cuda_program_allow_numbers");
  functions.find(&results_, "ec_cuda_program_results");
  functions.find(&use_cublaslt_, "ec_cuda_program_use_cublaslt");
  functions.find(&cublaslt_failure_, "ec_cuda_program_cublaslt_failure");
  for (const char* const name : kOfVariants) {
    void* unused = nullptr;
    functions.find(&unused, name);
  }
  functions.check(label);
  check_abi(label, abi_version_(), kAbiVersion);
  check(load_driver_(driver_.path().c_str()), "loading the driver");
}

void GpuLibrary::check(int32_t status, const std::string& doing) const {
  if (status == 0) return;
  const std::string text = last_error_();
  const std::string message = cat(doing, " failed: ", text.empty() ? "no reason" : text);
  if (const int32_t number = last_number_()) throw driver_.error(number, message);
  if (is_out_of_memory(text)) fail_for_memory(cat(label_, ": ", doing));
  throw GpuError(message);
}

GpuProgram::GpuProgram(const GpuLibrary& library, const PinnedLibrary& pinned,
                       const DeviceWeights& weights, const Manifest& manifest)
    : library_(library), manifest_(manifest), label_(pinned.label) {
  std::vector<NativeTensor> table;
  for (const Constant& constant : weights.constants()) {
    table.push_back(describe_tensor(*constant.type, constant.shape,
                                    reinterpret_cast<const uint8_t*>(weights.address(constant))));
    table.back().name = constant.name.c_str();
  }
  pinned.check_again();
  const int32_t status = library_.open_(pinned.path.c_str(), table.data(),
                                        static_cast<int64_t>(table.size()), &handle_);
  if (status != 0) fail_if_loading_limit(library_.last_error_(), label_, pinned.path);
  library_.check(status, "opening " + label_);
  try {
    check_counts(label_, manifest, library_.input_count_(handle_), library_.output_count_(handle_));
  } catch (...) {
    library_.close_(handle_);
    throw;
  }
}

GpuProgram::~GpuProgram() {
  if (Driver::forked()) return;  // It is left as it is.
  std::optional<Driver::Current> current;
  try {
    current.emplace(library_.driver_);
  } catch (const GpuError&) {  // There is memory of the CPU to give back, too.
  }
  library_.close_(handle_);
}

Rehearsal GpuProgram::rehearse(const std::vector<Sizes>& inputs, const void* user) {
  user_ = nullptr;
  std::vector<NativeTensor> given, found(manifest_.outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    given.push_back(describe_tensor(*manifest_.inputs[i].type, inputs[i], nullptr));
  }
  Rehearsal result;
  library_.check(
      library_.plan_(handle_, given.data(), static_cast<int64_t>(given.size()), found.data(),
                     static_cast<int64_t>(found.size()), &result.scratch_bytes, &result.launches),
      "rehearsing " + label_);
  for (size_t i = 0; i < found.size(); ++i) {
    const TensorSpec& spec = manifest_.outputs[i];
    const ElementType* const type = find_type(found[i].dtype);
    if (type != spec.type) {
      throw GpuError(cat(label_, ": ", spec.name, " is ",
                         type == nullptr ? cat(found[i].dtype) : std::string(type->name),
                         ", the manifest says ", spec.type->name));
    }
    result.outputs.emplace_back(found[i].sizes, found[i].sizes + found[i].ndim);
  }
  user_ = user;
  return result;
}

void GpuProgram::load(const Version& capability) {
  const auto number = static_cast<int32_t>(capability.first * 10 + capability.second);
  library_.check(library_.load_(handle_, number), "loading the kernels of " + label_);
}

void GpuProgram::enqueue(const std::vector<uint64_t>& inputs, const std::vector<uint64_t>& outputs,
                         Address scratch, int64_t scratch_bytes, void* stream) {
  library_.check(
      library_.enqueue_(handle_, inputs.data(), static_cast<int64_t>(inputs.size()), outputs.data(),
                        static_cast<int64_t>(outputs.size()), scratch, scratch_bytes, stream),
      "running " + label_);
}

void GpuProgram::allow_numbers() {
  library_.check(library_.allow_numbers_(handle_), "opening " + label_);
}

void GpuProgram::use_cublaslt(int64_t version, const std::vector<int64_t>& rows) {
  library_.check(
      library_.use_cublaslt_(handle_, version, rows.data(), static_cast<int64_t>(rows.size())),
      "opening " + label_);
  uses_cublaslt_ = !rows.empty();
}

bool GpuProgram::drop_cublaslt() {
  if (!uses_cublaslt_ || cublaslt_failure().empty()) return false;
  use_cublaslt(0, {});
  return true;
}

std::string GpuProgram::cublaslt_failure() const { return library_.cublaslt_failure_(handle_); }

std::vector<Sizes> GpuProgram::results() const {
  std::vector<NativeTensor> found(manifest_.outputs.size());
  library_.check(library_.results_(handle_, found.data(), static_cast<int64_t>(found.size())),
                 "asking " + label_ + " for its results");
  std::vector<Sizes> shapes;
  for (const NativeTensor& item : found) shapes.emplace_back(item.sizes, item.sizes + item.ndim);
  return shapes;
}

}  // namespace ecr
