// Linked into every program whose kernels are torch's, beside the code that AOTInductor generated.
//
// The program brings its own copy of the C++ runtime, and an exception must be thrown by the
// library that catches it, so the check that throws lives here. The build renames the generated
// code's aoti_torch_check, and its calls of operators without a C interface, to the functions
// below.
#include <cstdint>
#include <stdexcept>
#include <string>

#define EC_HIDDEN extern "C" __attribute__((visibility("hidden")))

EC_HIDDEN void ec_aoti_torch_check(bool cond, const char* func, const char* /*file*/, uint32_t line,
                                   const char* msg) {
  if (!cond) {
    throw std::runtime_error(std::string(func) + ", line " + std::to_string(line) + ": " +
                             (msg == nullptr ? "" : msg));
  }
}

using Call = int32_t (*)(int32_t number, int32_t n_ints, int64_t* ints, int32_t n_tensors,
                         void** tensors);

// torch's own function takes an object of a C++ class that it doesn't export. Here the executor
// that comes with a run is the function of the loader (edgecompile/torch_runtime/calls.py).
EC_HIDDEN int32_t ec_aoti_torch_proxy_executor_call_function(void* executor, int number, int n_ints,
                                                             int64_t* ints, int n_tensors,
                                                             void** tensors) {
  if (executor == nullptr) return 1;
  return reinterpret_cast<Call>(executor)(number, n_ints, ints, n_tensors, tensors);
}

// Weights live in the bundle's own file, but the container refers to the section that would
// otherwise hold them.
EC_HIDDEN const unsigned char _binary_constants_bin_start[1] = {0};
EC_HIDDEN const unsigned char _binary_constants_bin_end[1] = {0};
