// Linked into every program whose kernels are torch's, beside the code that AOTInductor generated.
//
// The program brings its own copy of the C++ runtime, and an exception must be thrown by the
// library that catches it, so the check that throws lives here. The build renames the generated
// code's aoti_torch_check to it.
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

// Weights live in the bundle's own file, but the container refers to the section that would
// otherwise hold them.
EC_HIDDEN const unsigned char _binary_constants_bin_start[1] = {0};
EC_HIDDEN const unsigned char _binary_constants_bin_end[1] = {0};
