// Sizes and names of element types.
#include "tensors/dtypes.h"

#include "base/status.h"

namespace ec {

#define EC_RETURN_BYTES(name, ours, code, bytes) \
  case code:                                     \
    return bytes;
#define EC_RETURN_NAME(name, ours, code, bytes) \
  case code:                                    \
    return #name;

int64_t element_size(int32_t dtype) {
  switch (dtype) { EC_FOR_EACH_DTYPE(EC_RETURN_BYTES) }
  fail("unknown dtype code %d", dtype);
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) { EC_FOR_EACH_DTYPE(EC_RETURN_NAME) }
  return "unknown";
}

}  // namespace ec
