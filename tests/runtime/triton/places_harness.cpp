// Lets a test place requests as the runtime does.
#include "base/export.h"
#include "cuda/run.h"

EC_API int64_t ec_test_place(int64_t count, const int64_t* bytes, const int64_t* freed,
                             const int32_t* outputs, int64_t* offsets) {
  std::vector<ec::cuda::Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    requests.push_back({bytes[i], freed[i], outputs[i]});
  }
  const int64_t total = ec::cuda::place_requests(&requests);
  for (int64_t i = 0; i < count; ++i) offsets[i] = requests[static_cast<size_t>(i)].offset;
  return total;
}
