// The host-facing C ABI: programs on a GPU, their rehearsals and runs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda/edgecompile_cuda_abi.h"
#include "cuda/run.h"
#include "program/binding.h"

struct ec_cuda_program {
  // Order matters: the library goes first, then the handles that its container forgot.
  ec::HandleScope constants;
  std::unique_ptr<ec::ModelLibrary> library;
  std::vector<ec_tensor> inputs;        // of the rehearsal, without addresses
  std::vector<ec::cuda::Request> plan;  // for those
  std::vector<ec::cuda::Request> first_plan;
  std::vector<ec_tensor> results;  // the outputs of the last run
  std::vector<ec::cuda::Kernel*> kernels;
  int64_t scratch_bytes = 0, first_scratch_bytes = 0;
  int32_t capability = 0;  // 0 until the kernels are loaded
  bool may_read_numbers = false;
  ec::cuda::Products products;

  // Of a run: behind everything else there is cuBLASLt's.
  int64_t needed_bytes() const {
    return scratch_bytes + (products.need_workspace() ? ec::cuda::kWorkspaceBytes : 0);
  }
};

namespace {

using ec::fail;
using ec::HandleArray;
using ec::Tensor;
using ec::cuda::Address;
using ec::cuda::Request;
using ec::cuda::Run;

template <class Body>
int32_t guarded(const char* name, const Body& body) {
  ec::clear_last_error();
  ec::cuda::set_last_number(ec::cuda::kOk);
  return ec::guarded(name, body);
}

void check_counts(const ec_cuda_program* program, const void* inputs, int64_t n_inputs,
                  const void* outputs, int64_t n_outputs) {
  if (program == nullptr || inputs == nullptr || outputs == nullptr) fail("null pointer");
  const ec::ModelLibrary& library = *program->library;
  // The container would throw across its C ABI for a wrong count.
  if (n_inputs != library.input_count() || n_outputs != library.output_count()) {
    fail("the model has %ld inputs and %ld outputs, %ld and %ld were given", library.input_count(),
         library.output_count(), n_inputs, n_outputs);
  }
}

// Runs the program as `run` says, over inputs at these addresses.
void execute(ec_cuda_program* program, Run* run, const Address* addresses, HandleArray* outputs) {
  HandleArray inputs(static_cast<int64_t>(program->inputs.size()));
  for (size_t i = 0; i < program->inputs.size(); ++i) {
    ec_tensor input = program->inputs[i];
    input.data = reinterpret_cast<void*>(addresses[i]);
    inputs.handles[i] = ec::wrap(ec::borrow(input, "input"));
  }
  const ec::cuda::RunScope scope(run);
  program->library->run(inputs.handles.data(), outputs->handles.data(), run->stream);
  ec::separate(&outputs->handles);
}

// What a rehearsal tells.
struct Rehearsed {
  std::vector<Request> requests;
  std::vector<ec_tensor> outputs;
  int64_t launches = 0;
  bool reads_numbers = false;
};

// An output that has the whole of a request's memory to itself can be written where it belongs; the
// others are copied there after the run.
void claim_outputs(const std::string& where, const HandleArray& handles,
                   std::vector<Request>* requests, const std::vector<std::string>& names) {
  for (size_t i = 0; i < handles.handles.size(); ++i) {
    const Tensor& tensor = *ec::unwrap(handles.handles[i]);
    if (tensor.storage == nullptr) fail("the model left an output undefined");
    if (!ec::is_contiguous(tensor)) {
      fail("the output %s is no row-major tensor%s", names[i].c_str(), where.c_str());
    }
    if (tensor.storage->dropped == nullptr) continue;  // an input's or a constant's memory
    Request& request = (*requests)[static_cast<size_t>(tensor.storage->tag)];
    const int64_t bytes = tensor.numel() * ec::element_size(tensor.dtype);
    if (request.output < 0 && tensor.offset == 0 && bytes == request.bytes) {
      request.output = static_cast<int32_t>(i);
    }
  }
}

// Whether the same places serve: the requests come and go alike, and none is larger.
bool fits(const std::vector<Request>& wanted, const std::vector<Request>& had) {
  return wanted.size() == had.size() &&
         std::equal(wanted.begin(), wanted.end(), had.begin(), [](const auto& a, const auto& b) {
           return a.bytes <= b.bytes && a.freed == b.freed && a.output == b.output;
         });
}

void place(ec_cuda_program* program, std::vector<Request> requests) {
  if (fits(requests, program->first_plan)) {
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].offset = program->first_plan[i].offset;
    }
    program->scratch_bytes = program->first_scratch_bytes;
    program->plan = std::move(requests);
    return;
  }
  program->scratch_bytes = ec::cuda::place_requests(&requests);
  program->plan = std::move(requests);
  if (program->first_plan.empty()) {
    program->first_plan = program->plan;
    program->first_scratch_bytes = program->scratch_bytes;
  }
}

ec_tensor describe(int32_t dtype, int32_t dims, const int64_t* sizes) {
  ec_tensor view{};
  view.dtype = dtype;
  view.ndim = dims;
  view.nbytes = ec::element_size(dtype);
  for (int d = 0; d < dims; ++d) {
    view.sizes[d] = sizes[d];
    view.nbytes *= sizes[d];
  }
  ec::contiguous_strides(dims, sizes, view.strides);
  return view;
}

std::vector<ec_tensor> describe(const HandleArray& handles) {
  std::vector<ec_tensor> views;
  for (const AtenTensorHandle handle : handles.handles) {
    const Tensor& tensor = *ec::unwrap(handle);
    views.push_back(describe(tensor.dtype, tensor.dims, tensor.sizes));
  }
  return views;
}

// Goes through a run of the program's inputs without the GPU.
Rehearsed rehearse(ec_cuda_program* program, bool takes_least) {
  Rehearsed result;
  // Made up as well; an input may be empty, but has an address.
  std::vector<Address> addresses;
  for (size_t i = 0; i < program->inputs.size(); ++i) {
    addresses.push_back((Address{1} << 46) + (static_cast<Address>(i) << 36));
  }
  Run run;
  run.requests = &result.requests;
  run.rehearsed = true;
  run.takes_least = takes_least;
  run.kernels = &program->kernels;
  run.products = &program->products;
  HandleArray handles(program->library->output_count());
  execute(program, &run, addresses.data(), &handles);
  claim_outputs("", handles, &result.requests, program->library->output_names());
  result.outputs = describe(handles);
  result.launches = run.launches;
  result.reads_numbers = run.reads_numbers;
  return result;
}

// Widens a rehearsal to have room for what another one asks for, which differs in sizes alone.
void widen(Rehearsed* most, const Rehearsed& other) {
  const auto alike = [](const Request& a, const Request& b) { return a.freed == b.freed; };
  std::vector<Request>& requests = most->requests;
  if (!std::equal(requests.begin(), requests.end(), other.requests.begin(), other.requests.end(),
                  alike)) {
    fail("the program asks for memory in an order that depends on values");
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].bytes = std::max(requests[i].bytes, other.requests[i].bytes);
  }
  for (size_t i = 0; i < most->outputs.size(); ++i) {
    ec_tensor& output = most->outputs[i];
    for (int d = 0; d < output.ndim; ++d) {
      output.sizes[d] = std::max(output.sizes[d], other.outputs[i].sizes[d]);
    }
    output = describe(output.dtype, output.ndim, output.sizes);
  }
}

}  // namespace

int32_t ec_cuda_abi_version(void) { return EC_CUDA_ABI_VERSION; }
int32_t ec_cuda_last_error(void) { return ec::cuda::last_number(); }
const char* ec_last_error(void) { return ec::last_error(); }
int64_t ec_live_tensors(void) { return ec::live_tensors(); }

int32_t ec_cuda_load_driver(const char* path) {
  return guarded("ec_cuda_load_driver", [&] {
    if (path == nullptr) fail("null pointer");
    ec::cuda::load_driver(path);
  });
}

int32_t ec_cuda_program_open(const char* library_path, const ec_tensor* constants,
                             int64_t n_constants, ec_cuda_program** out) {
  return guarded("ec_cuda_program_open", [&] {
    if (out == nullptr || n_constants < 0 || (n_constants > 0 && constants == nullptr)) {
      fail("null pointer or negative count");
    }
    auto program = std::make_unique<ec_cuda_program>();
    ec::HandleScope::Entry entry(&program->constants);
    program->library = std::make_unique<ec::ModelLibrary>(library_path, 1, "cuda:0");
    ec::bind_constants(program->library.get(), constants, n_constants);
    *out = program.release();
  });
}

int64_t ec_cuda_program_input_count(const ec_cuda_program* program) {
  return program == nullptr ? 0 : program->library->input_count();
}

int64_t ec_cuda_program_output_count(const ec_cuda_program* program) {
  return program == nullptr ? 0 : program->library->output_count();
}

int32_t ec_cuda_program_plan(ec_cuda_program* program, const ec_tensor* inputs, int64_t n_inputs,
                             ec_tensor* outputs, int64_t n_outputs, int64_t* scratch_bytes,
                             int64_t* launches) {
  return guarded("ec_cuda_program_plan", [&] {
    check_counts(program, inputs, n_inputs, outputs, n_outputs);
    if (scratch_bytes == nullptr || launches == nullptr) fail("null pointer");
    std::vector<ec_tensor> before(inputs, inputs + n_inputs);
    std::swap(before, program->inputs);
    try {
      Rehearsed rehearsed = rehearse(program, false);
      if (rehearsed.reads_numbers && !program->may_read_numbers) {
        fail(
            "sizes depend on values here, which this loader or the manifest doesn't know of: "
            "use the runtime in the bundle's own runtime/ folder");
      }
      if (rehearsed.reads_numbers) widen(&rehearsed, rehearse(program, true));
      std::copy(rehearsed.outputs.begin(), rehearsed.outputs.end(), outputs);
      place(program, std::move(rehearsed.requests));
      *scratch_bytes = program->needed_bytes();
      *launches = rehearsed.launches;
    } catch (...) {
      std::swap(before, program->inputs);
      throw;
    }
  });
}

int32_t ec_cuda_program_load(ec_cuda_program* program, int32_t capability) {
  return guarded("ec_cuda_program_load", [&] {
    if (program == nullptr) fail("null pointer");
    program->capability = capability;
    for (ec::cuda::Kernel* kernel : program->kernels) ec::cuda::load_kernel(kernel, capability);
  });
}

int32_t ec_cuda_program_enqueue(ec_cuda_program* program, const uint64_t* inputs, int64_t n_inputs,
                                const uint64_t* outputs, int64_t n_outputs, uint64_t scratch,
                                int64_t scratch_bytes, void* stream) {
  return guarded("ec_cuda_program_enqueue", [&] {
    check_counts(program, inputs, n_inputs, outputs, n_outputs);
    if (program->capability == 0) fail("the kernels aren't loaded");
    const int64_t needed = program->needed_bytes();
    if (scratch_bytes < needed || scratch % ec::cuda::kBlockAlignment != 0) {
      fail("a run needs %ld bytes of aligned scratch memory, there are %ld", needed, scratch_bytes);
    }
    const std::vector<Address> sources(inputs, inputs + n_inputs);
    const std::vector<Address> targets(outputs, outputs + n_outputs);
    Run run;
    run.requests = &program->plan;
    run.block = reinterpret_cast<char*>(scratch);
    run.outputs = targets.data();
    run.stream = static_cast<ec::cuda::Stream>(stream);
    run.capability = program->capability;
    run.products = &program->products;
    run.workspace = run.block + program->scratch_bytes;
    HandleArray handles(n_outputs);
    execute(program, &run, sources.data(), &handles);
    if (run.next != program->plan.size()) fail("the run asked for less than its rehearsal did");
    program->results = describe(handles);
    const ec::cuda::RunScope scope(&run);
    for (size_t i = 0; i < targets.size(); ++i) {
      const Tensor& tensor = *ec::unwrap(handles.handles[i]);
      if (!ec::is_contiguous(tensor)) fail("an output is no row-major tensor");
      if (reinterpret_cast<Address>(tensor.data) == targets[i]) continue;
      ec::cuda::copy_bytes(reinterpret_cast<void*>(targets[i]), tensor.data,
                           tensor.numel() * ec::element_size(tensor.dtype));
    }
  });
}

int32_t ec_cuda_program_allow_numbers(ec_cuda_program* program) {
  return guarded("ec_cuda_program_allow_numbers", [&] {
    if (program == nullptr) fail("null pointer");
    program->may_read_numbers = true;
  });
}

int32_t ec_cuda_program_results(const ec_cuda_program* program, ec_tensor* outputs,
                                int64_t n_outputs) {
  return guarded("ec_cuda_program_results", [&] {
    if (program == nullptr || outputs == nullptr) fail("null pointer");
    if (n_outputs != static_cast<int64_t>(program->results.size())) {
      fail("the last run has %zu outputs, not %ld", program->results.size(), n_outputs);
    }
    std::copy(program->results.begin(), program->results.end(), outputs);
  });
}

int32_t ec_cuda_cublaslt_version(int64_t* version) {
  return guarded("ec_cuda_cublaslt_version", [&] {
    if (version == nullptr) fail("null pointer");
    *version = ec::cuda::cublaslt_version();
  });
}

int64_t ec_cuda_program_products(const ec_cuda_program* program, int64_t* rows, int64_t n_rows) {
  if (program == nullptr) return 0;
  const std::vector<int64_t>& known = program->products.rows;
  const auto count = static_cast<int64_t>(known.size());
  if (rows != nullptr) std::copy_n(known.begin(), std::min(count, n_rows), rows);
  return count;
}

int32_t ec_cuda_program_use_cublaslt(ec_cuda_program* program, int64_t version, const int64_t* from,
                                     int64_t n_from) {
  return guarded("ec_cuda_program_use_cublaslt", [&] {
    if (program == nullptr || n_from < 0 || (n_from > 0 && from == nullptr)) {
      fail("null pointer or negative count");
    }
    program->products.version = version;
    program->products.from.assign(from, from + n_from);
  });
}

const char* ec_cuda_program_cublaslt_failure(const ec_cuda_program* program) {
  const bool failed = program != nullptr && program->products.failed;
  return failed ? program->products.failure.c_str() : "";
}

void ec_cuda_program_close(ec_cuda_program* program) { delete program; }
