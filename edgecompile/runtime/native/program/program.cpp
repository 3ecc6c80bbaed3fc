// The host-facing C ABI: programs, runs and their outputs.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/allocator.h"
#include "base/edgecompile_abi.h"
#include "base/profile.h"
#include "program/model_library.h"
#include "tensors/copies.h"
#include "threads/threads.h"

static_assert(EC_MAX_DIMS == ec::kMaxDims);

struct ec_program {
  // Order matters: the library goes first, then the handles that its container forgot.
  ec::HandleScope constants;
  std::unique_ptr<ec::ModelLibrary> library;
  std::shared_ptr<const std::vector<std::string>> output_names;
};

struct ec_outputs {
  std::shared_ptr<const std::vector<std::string>> names;
  std::vector<ec::Tensor*> tensors;

  ec_outputs() = default;
  ec_outputs(const ec_outputs&) = delete;
  ec_outputs& operator=(const ec_outputs&) = delete;
  ~ec_outputs() {
    for (ec::Tensor* tensor : tensors) ec::free_tensor(tensor);
  }
};

namespace {

using ec::fail;
using ec::guarded;
using ec::OwnedTensor;
using ec::Tensor;

const char* name_of(const ec_tensor& tensor) { return tensor.name == nullptr ? "" : tensor.name; }

// A handle that borrows the described memory.
Tensor* borrow(const ec_tensor& tensor, const char* what) {
  try {
    OwnedTensor borrowed(
        ec::new_borrowed(tensor.data, tensor.ndim, tensor.sizes, tensor.strides, 0, tensor.dtype));
    if (borrowed->storage->bytes > tensor.nbytes) {
      fail("it describes %ld bytes but has %ld", borrowed->storage->bytes, tensor.nbytes);
    }
    return borrowed.release();
  } catch (const ec::Error& error) {
    throw ec::Error(std::string(what) + " '" + name_of(tensor) + "': " + error.what());
  }
}

// Handles of one call; those that nobody took over are freed.
struct HandleArray {
  std::vector<AtenTensorHandle> handles;

  explicit HandleArray(int64_t count) : handles(static_cast<size_t>(count), nullptr) {}
  HandleArray(const HandleArray&) = delete;
  HandleArray& operator=(const HandleArray&) = delete;
  ~HandleArray() {
    for (AtenTensorHandle handle : handles) ec::free_tensor(reinterpret_cast<Tensor*>(handle));
  }
};

void bind_constants(ec_program* program, const ec_tensor* constants, int64_t n_constants) {
  std::unordered_map<std::string, const ec_tensor*> by_name;
  for (int64_t i = 0; i < n_constants; ++i) by_name.emplace(name_of(constants[i]), &constants[i]);

  const std::vector<ec::ConstantInfo> wanted = program->library->constants();
  HandleArray handles(static_cast<int64_t>(wanted.size()));
  std::vector<ec::ModelLibrary::NamedHandle> pairs;
  std::string missing;
  std::string wrong;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const ec::ConstantInfo& info = wanted[i];
    const auto found = by_name.find(info.fqn);
    if (found == by_name.end()) {
      missing += (missing.empty() ? "" : ", ") + info.fqn;
      continue;
    }
    const ec_tensor& given = *found->second;
    // The generated code rounds sizes up to 64 bytes.
    if (given.dtype != info.dtype || (given.nbytes + 63) / 64 * 64 != info.bytes) {
      wrong += (wrong.empty() ? "" : ", ") + info.fqn + " (" + ec::dtype_name(given.dtype) + ", " +
               std::to_string(given.nbytes) + " bytes, the model wants " +
               ec::dtype_name(info.dtype) + ", " + std::to_string(info.bytes) + " bytes)";
      continue;
    }
    handles.handles[i] = ec::wrap(borrow(given, "constant"));
    pairs.push_back({info.name.c_str(), handles.handles[i]});
  }
  if (!missing.empty() || !wrong.empty()) {
    std::string text;
    if (!missing.empty()) text = "missing constants: " + missing;
    if (!wrong.empty()) text += (text.empty() ? "" : "; ") + ("misfitting constants: " + wrong);
    throw ec::Error(text);
  }
  program->library->bind_constants(pairs);
}

std::string text_of(const Tensor& tensor) {
  std::string text;
  for (int d = 0; d < tensor.dims; ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(tensor.sizes[d]);
  }
  return text;
}

// Memory of inputs and constants may go away before the outputs do.
void detach_outputs(ec_outputs* outputs) {
  for (Tensor*& tensor : outputs->tensors) {
    if (tensor->storage->owned) continue;
    Tensor* own = ec::new_clone(*tensor);
    ec::free_tensor(tensor);
    tensor = own;
  }
}

// A model that returns one tensor twice writes the same handle twice; each is to be freed.
void separate(std::vector<AtenTensorHandle>* handles) {
  for (size_t i = 1; i < handles->size(); ++i) {
    const auto end = handles->begin() + static_cast<std::ptrdiff_t>(i);
    const auto earlier = std::find(handles->begin(), end, *end);
    if (*end == nullptr || earlier == end) continue;
    *end = nullptr;  // should there be no memory for the alias
    *end = ec::wrap(ec::new_alias(*ec::unwrap(*earlier)));
  }
}

std::unique_ptr<ec_outputs> run(ec_program* program, const ec_tensor* inputs, int64_t n_inputs) {
  ec::ModelLibrary& library = *program->library;
  // The container would throw across its C ABI for a wrong count.
  if (n_inputs != library.input_count() || (n_inputs > 0 && inputs == nullptr)) {
    fail("the model has %ld inputs, %ld were given", library.input_count(), n_inputs);
  }
  HandleArray input_handles(n_inputs);
  for (int64_t i = 0; i < n_inputs; ++i) {
    OwnedTensor borrowed(borrow(inputs[i], "input"));
    if (!ec::is_contiguous(*borrowed)) borrowed.reset(ec::new_contiguous_copy(*borrowed));
    input_handles.handles[static_cast<size_t>(i)] = ec::wrap(borrowed.release());
  }
  HandleArray output_handles(library.output_count());
  {
    // Generated code sizes arrays by omp_get_max_threads() before it enters a region.
    const ec::FixedThreads fixed_threads;
    const ec::WorkTimer timer(ec::Work::kRun, {});
    library.run(input_handles.handles.data(), output_handles.handles.data());
  }
  separate(&output_handles.handles);
  if (ec::pending_failure() != nullptr) fail("%s", ec::pending_failure());

  auto outputs = std::make_unique<ec_outputs>();
  outputs->names = program->output_names;
  outputs->tensors.reserve(output_handles.handles.size());
  for (AtenTensorHandle& handle : output_handles.handles) {
    if (handle == nullptr || ec::unwrap(handle)->storage == nullptr) {
      fail("the model left an output undefined");
    }
    outputs->tensors.push_back(ec::unwrap(handle));
    handle = nullptr;
  }
  return outputs;
}

// A failure that generated code can't report belongs to the run that it happened in.
template <class F>
int32_t guarded_run(const char* name, const F& f) {
  ec::clear_last_error();
  ec::clear_pending_failure();
  const int32_t status = guarded(name, f);
  ec::clear_pending_failure();
  return status;
}

// The leading part of a result that the caller has memory for.
void copy_output(const Tensor& result, const ec_tensor& wanted, size_t index) {
  const OwnedTensor target(borrow(wanted, "output"));
  bool fits = result.dtype == target->dtype && result.dims == target->dims;
  for (int d = 0; fits && d < result.dims; ++d) fits = target->sizes[d] <= result.sizes[d];
  if (!fits) {
    fail("output %zu is %s [%s], memory for %s [%s] was given", index, ec::dtype_name(result.dtype),
         text_of(result).c_str(), ec::dtype_name(target->dtype), text_of(*target).c_str());
  }
  const OwnedTensor part(ec::new_view(result, result.dims, target->sizes, result.strides,
                                      result.offset, result.dtype));
  ec::copy_elements(*part, target.get());
}

}  // namespace

int32_t ec_abi_version(void) { return EC_ABI_VERSION; }

const char* ec_last_error(void) { return ec::last_error(); }

int32_t ec_set_num_threads(int32_t n) {
  return guarded("ec_set_num_threads", [&] {
    if (n < 0) fail("%d threads", n);
    ec::set_num_threads(n);
  });
}

int32_t ec_get_num_threads(void) { return ec::num_threads(); }

int32_t ec_set_run_threads(int32_t n) {
  return guarded("ec_set_run_threads", [&] {
    if (n < 0) fail("%d threads", n);
    ec::set_threads_of_runs(n);
  });
}

int32_t ec_program_open(const char* library_path, const ec_tensor* constants, int64_t n_constants,
                        int32_t concurrency, ec_program** out) {
  ec::clear_last_error();
  return guarded("ec_program_open", [&] {
    if (out == nullptr || n_constants < 0 || (n_constants > 0 && constants == nullptr)) {
      fail("null pointer or negative count");
    }
    auto program = std::make_unique<ec_program>();
    ec::HandleScope::Entry entry(&program->constants);
    program->library = std::make_unique<ec::ModelLibrary>(library_path, concurrency);
    program->output_names =
        std::make_shared<const std::vector<std::string>>(program->library->output_names());
    bind_constants(program.get(), constants, n_constants);
    *out = program.release();
  });
}

int64_t ec_program_input_count(const ec_program* program) {
  return program == nullptr ? 0 : program->library->input_count();
}

int64_t ec_program_output_count(const ec_program* program) {
  return program == nullptr ? 0 : program->library->output_count();
}

int32_t ec_program_run(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
                       ec_outputs** out) {
  return guarded_run("ec_program_run", [&] {
    if (program == nullptr || out == nullptr) fail("null pointer");
    std::unique_ptr<ec_outputs> outputs = run(program, inputs, n_inputs);
    detach_outputs(outputs.get());
    *out = outputs.release();
  });
}

int32_t ec_program_run_into(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
                            const ec_tensor* outputs, int64_t n_outputs) {
  return guarded_run("ec_program_run_into", [&] {
    if (program == nullptr) fail("null pointer");
    const int64_t count = program->library->output_count();
    if (n_outputs != count || (n_outputs > 0 && outputs == nullptr)) {
      fail("the model has %ld outputs, memory for %ld was given", count, n_outputs);
    }
    const std::unique_ptr<ec_outputs> results = run(program, inputs, n_inputs);
    for (size_t i = 0; i < results->tensors.size(); ++i) {
      copy_output(*results->tensors[i], outputs[i], i);
    }
  });
}

int64_t ec_outputs_count(const ec_outputs* outputs) {
  return outputs == nullptr ? 0 : static_cast<int64_t>(outputs->tensors.size());
}

int32_t ec_outputs_get(const ec_outputs* outputs, int64_t i, ec_tensor* view) {
  return guarded("ec_outputs_get", [&] {
    if (outputs == nullptr || view == nullptr) fail("null pointer");
    if (i < 0 || i >= static_cast<int64_t>(outputs->tensors.size())) {
      fail("output %ld of %zu", i, outputs->tensors.size());
    }
    const size_t index = static_cast<size_t>(i);
    const Tensor& tensor = *outputs->tensors[index];
    *view = ec_tensor{};
    view->name = (*outputs->names)[index].c_str();
    view->data = tensor.data;
    view->nbytes = tensor.storage->bytes - (tensor.data - tensor.storage->data);
    view->dtype = tensor.dtype;
    view->ndim = tensor.dims;
    for (int d = 0; d < tensor.dims; ++d) {
      view->sizes[d] = tensor.sizes[d];
      view->strides[d] = tensor.strides[d];
    }
  });
}

void ec_outputs_free(ec_outputs* outputs) { delete outputs; }

void ec_program_close(ec_program* program) { delete program; }

void ec_trim(void) { ec::trim_cache(); }

int64_t ec_live_tensors(void) { return ec::live_tensors(); }
int64_t ec_live_bytes(void) { return static_cast<int64_t>(ec::allocator_stats().live_bytes); }
int64_t ec_cached_bytes(void) { return static_cast<int64_t>(ec::allocator_stats().cached_bytes); }
