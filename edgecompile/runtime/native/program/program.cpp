// The host-facing C ABI: programs, runs and their outputs.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/allocator.h"
#include "base/edgecompile_abi.h"
#include "base/profile.h"
#include "program/binding.h"
#include "program/model_library.h"
#include "shim/head_mask.h"
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

using ec::borrow;
using ec::fail;
using ec::guarded;
using ec::HandleArray;
using ec::OwnedTensor;
using ec::Tensor;

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
  ec::separate(&output_handles.handles);
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

void run_into(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
              const ec_tensor* outputs, int64_t n_outputs) {
  if (program == nullptr) fail("null pointer");
  const int64_t count = program->library->output_count();
  if (n_outputs != count || (n_outputs > 0 && outputs == nullptr)) {
    fail("the model has %ld outputs, memory for %ld was given", count, n_outputs);
  }
  const std::unique_ptr<ec_outputs> results = run(program, inputs, n_inputs);
  for (size_t i = 0; i < results->tensors.size(); ++i) {
    copy_output(*results->tensors[i], outputs[i], i);
  }
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
    ec::bind_constants(program->library.get(), constants, n_constants);
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
  return guarded_run("ec_program_run_into",
                     [&] { run_into(program, inputs, n_inputs, outputs, n_outputs); });
}

int32_t ec_program_run_masked(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
                              const ec_tensor* outputs, int64_t n_outputs, const uint8_t* wanted,
                              int64_t n_wanted) {
  return guarded_run("ec_program_run_masked", [&] {
    if (wanted == nullptr) fail("null pointer");
    const ec::HeadMask mask({wanted, n_wanted});
    run_into(program, inputs, n_inputs, outputs, n_outputs);
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
