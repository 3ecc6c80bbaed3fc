// A compiled program through the C ABI of the bundle's runtime library.
#include "call/program.h"

#include <algorithm>

#include "base/text.h"
#include "bundle/limits.h"

namespace ecr {
namespace {

constexpr int32_t kAbiVersion = 1;

}  // namespace

NativeTensor describe_tensor(const ElementType& type, const Sizes& sizes, const uint8_t* data) {
  NativeTensor tensor;
  // Inputs and constants are only read; the interface has one structure for all.
  tensor.data = const_cast<uint8_t*>(data);
  tensor.nbytes = count_elements(sizes) * type.size;
  tensor.dtype = type.code;
  tensor.ndim = static_cast<int32_t>(sizes.size());
  const Sizes strides = row_major(sizes);
  std::copy(sizes.begin(), sizes.end(), tensor.sizes);
  std::copy(strides.begin(), strides.end(), tensor.strides);
  return tensor;
}

void check_counts(const std::string& label, const Manifest& manifest, int64_t n_inputs,
                  int64_t n_outputs) {
  if (n_inputs == static_cast<int64_t>(manifest.inputs.size()) &&
      n_outputs == static_cast<int64_t>(manifest.outputs.size())) {
    return;
  }
  fail(ECR_BUNDLE,
       cat(label, ": has ", n_inputs, " inputs and ", n_outputs, " outputs, the manifest has ",
           manifest.inputs.size(), " and ", manifest.outputs.size(), " [program-signature]"));
}

RuntimeLibrary::RuntimeLibrary(void* handle, const std::string& label) : label_(label) {
  Functions functions(handle);
  functions.find(&abi_version_, "ec_abi_version");
  functions.find(&last_error_, "ec_last_error");
  functions.find(&set_num_threads_, "ec_set_num_threads");
  functions.find(&get_num_threads_, "ec_get_num_threads");
  functions.find(&program_open_, "ec_program_open");
  functions.find(&program_run_, "ec_program_run");
  functions.find(&program_input_count_, "ec_program_input_count");
  functions.find(&program_output_count_, "ec_program_output_count");
  functions.find(&program_close_, "ec_program_close");
  functions.find(&outputs_count_, "ec_outputs_count");
  functions.find(&outputs_get_, "ec_outputs_get");
  functions.find(&outputs_free_, "ec_outputs_free");
  functions.find(&trim_, "ec_trim");
  functions.check(label);
  check_abi(label, abi_version_(), kAbiVersion);
}

void RuntimeLibrary::set_threads(int32_t count) const {
  check(set_num_threads_(count), cat("setting ", count, " threads"));
}

void RuntimeLibrary::check(int32_t status, const std::string& doing) const {
  if (status == 0) return;
  const std::string text = error_text();
  if (is_out_of_memory(text)) fail_for_memory(cat(label_, ": ", doing));
  fail(ECR_NATIVE, cat(label_, ": ", doing, " failed: ", text.empty() ? "no reason" : text));
}

std::string RuntimeLibrary::error_text() const {
  const char* const text = last_error_();
  return text == nullptr ? "" : text;
}

Program::Program(const RuntimeLibrary& library, const PinnedLibrary& pinned,
                 std::shared_ptr<const Weights> weights, int32_t concurrency)
    : library_(library), label_(pinned.label), weights_(std::move(weights)) {
  std::vector<NativeTensor> table;
  for (const Constant& constant : weights_->constants()) {
    NativeTensor tensor =
        describe_tensor(*constant.type, constant.shape, weights_->data() + constant.offset);
    tensor.name = constant.name.c_str();
    table.push_back(tensor);
  }
  pinned.check_again();
  const int32_t status = library_.program_open_(
      pinned.path.c_str(), table.data(), static_cast<int64_t>(table.size()), concurrency, &handle_);
  if (status != 0) fail_if_loading_limit(library_.error_text(), label_, pinned.path);
  library_.check(status, "opening " + label_);
}

Program::~Program() { library_.program_close_(handle_); }

std::unique_ptr<ProgramOutputs> Program::run(const std::vector<Array>& arrays) const {
  std::vector<NativeTensor> table;
  for (const Array& array : arrays)
    table.push_back(describe_tensor(*array.type, array.sizes, array.data));
  ec_outputs* outputs = nullptr;
  library_.check(
      library_.program_run_(handle_, table.data(), static_cast<int64_t>(table.size()), &outputs),
      "running " + label_);
  try {
    return std::make_unique<ProgramOutputs>(library_, outputs);
  } catch (...) {
    library_.outputs_free_(outputs);
    throw;
  }
}

Array ProgramOutputs::take(int64_t i, const Sizes& crop, const std::string& label) const {
  NativeTensor view;
  library_.check(library_.outputs_get_(handle_, i, &view),
                 cat("reading output ", i, " of ", label));
  const ElementType* const type = find_type(view.dtype);
  if (type == nullptr || view.ndim < 0 || view.ndim > ECR_MAX_DIMS) {
    fail(ECR_NATIVE,
         cat(label, ": an output has dtype code ", view.dtype, " and ", view.ndim, " dimensions"));
  }
  const Sizes sizes(view.sizes, view.sizes + view.ndim);
  const Sizes strides(view.strides, view.strides + view.ndim);
  if (crop.size() != sizes.size()) {
    fail(ECR_NATIVE, cat(label, ": output ", i, " has ", sizes.size(),
                         " dimensions, the manifest has ", crop.size()));
  }
  // The last element that is read has to lie within what the view may read.
  int64_t last = 0;
  bool fits = true;
  bool is_empty = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t step = 0;
    is_empty = is_empty || sizes[d] == 0;
    fits = fits && sizes[d] >= 0 && strides[d] >= 0 &&
           !__builtin_mul_overflow(std::max<int64_t>(sizes[d] - 1, 0), strides[d], &step) &&
           !__builtin_add_overflow(last, step, &last);
  }
  if (!fits || (!is_empty && last >= view.nbytes / type->size)) {
    fail(ECR_NATIVE, cat(label, ": output ", i, " is larger than its memory"));
  }
  Sizes cut = sizes;
  for (size_t d = 0; d < cut.size(); ++d) {
    if (crop[d] >= 0) cut[d] = std::min(cut[d], crop[d]);
  }
  // Strides of 0 repeat elements: what is copied may be larger than what it is copied from.
  int64_t nbytes = type->size;
  for (const int64_t size : cut) {
    fits = fits && (is_empty || !__builtin_mul_overflow(nbytes, size, &nbytes));
  }
  if (!fits) fail(ECR_NATIVE, cat(label, ": output ", i, " has impossible sizes"));
  const auto* const data = static_cast<const uint8_t*>(view.data);
  if (cut == sizes && strides == row_major(sizes)) return {type, sizes, data, {}};
  Array array = make_array(*type, cut);
  copy_box(array.owned.data(), row_major(cut), data, strides, cut, type->size);
  return array;
}

}  // namespace ecr
