// Linked into every model library, beside the code that AOTInductor generated.
//
// An exception must be thrown by the library that catches it: the model and the runtime each carry
// their own copy of the C++ runtime, and unwinding from one into the other aborts. So the check
// that throws lives here; the rest of it, which gives up parallel regions and keeps the message, in
// the runtime. The build renames the generated code's aoti_torch_check to ec_aoti_torch_check, and
// this hidden definition comes before the runtime's.
#include <cstdint>
#include <stdexcept>

#include "base/demangle.h"
#include "base/find_object.h"

#define EC_HIDDEN extern "C" __attribute__((visibility("hidden")))

// Exported by the runtime library; returns the message, which stays the thread's last error.
extern "C" const char* ec_check_failed(const char* func, uint32_t line, const char* msg);

EC_HIDDEN void ec_aoti_torch_check(bool cond, const char* func, const char* /*file*/, uint32_t line,
                                   const char* msg) {
  if (!cond) throw std::runtime_error(ec_check_failed(func, line, msg));
}

// Weights live in the bundle's own file, but the container refers to the section that would
// otherwise hold them.
EC_HIDDEN const unsigned char _binary_constants_bin_start[1] = {0};
EC_HIDDEN const unsigned char _binary_constants_bin_end[1] = {0};
