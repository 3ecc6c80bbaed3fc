// Memory of a run: requests of a rehearsal, their places, tensors over them.
#include "cuda/run.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"

namespace ec::cuda {
namespace {

thread_local Run* t_run = nullptr;

// Where made-up memory begins; nothing looks at what lies there.
constexpr uintptr_t kMadeUp = uintptr_t{1} << 40;

int64_t rounded(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

void note_dropped(int64_t tag) {
  // Outputs outlive the run.
  if (t_run == nullptr || !t_run->rehearsed) return;
  std::vector<Request>& requests = *t_run->requests;
  requests[static_cast<size_t>(tag)].freed = static_cast<int64_t>(requests.size());
}

void* find_memory(Run& run, int64_t bytes) {
  const size_t index = run.next++;
  if (run.rehearsed) {
    run.requests->push_back({bytes});
    // Far apart, so that no two of them seem to overlap.
    return reinterpret_cast<void*>(kMadeUp + (index << 36));
  }
  const int64_t planned = index < run.requests->size() ? (*run.requests)[index].bytes : -1;
  if (run.reads_numbers ? bytes > planned : bytes != planned) {
    fail("the program asks for other memory than its rehearsal did: %ld bytes as number %zu", bytes,
         index);
  }
  const Request& request = (*run.requests)[index];
  if (request.output >= 0) return reinterpret_cast<void*>(run.outputs[request.output]);
  return run.block + request.offset;
}

}  // namespace

int64_t place_requests(std::vector<Request>* requests) {
  std::vector<size_t> order(requests->size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return (*requests)[a].bytes > (*requests)[b].bytes; });
  std::vector<size_t> placed;  // by offset
  int64_t total = 0;
  for (const size_t index : order) {
    Request& request = (*requests)[index];
    if (request.output >= 0) continue;
    const int64_t size = rounded(std::max<int64_t>(request.bytes, 1));
    int64_t offset = 0;
    for (const size_t other : placed) {
      const Request& there = (*requests)[other];
      if (!request.overlaps(there, static_cast<int64_t>(index), static_cast<int64_t>(other))) {
        continue;
      }
      if (there.offset >= offset + size) break;
      offset = std::max(offset, there.offset + rounded(std::max<int64_t>(there.bytes, 1)));
    }
    request.offset = offset;
    total = std::max(total, offset + size);
    const auto place = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&](int64_t value, size_t other) { return value < (*requests)[other].offset; });
    placed.insert(place, index);
  }
  return total;
}

Run& current_run() {
  if (t_run == nullptr) fail("a program on the GPU was called outside of a run");
  return *t_run;
}

RunScope::RunScope(Run* run) { t_run = run; }
RunScope::~RunScope() { t_run = nullptr; }

Tensor* new_device_tensor(int64_t dims, const int64_t* sizes, const int64_t* strides,
                          int32_t dtype) {
  Run& run = current_run();
  // Over memory that isn't there, for its size.
  OwnedTensor tensor(
      new_borrowed(reinterpret_cast<void*>(kMadeUp), dims, sizes, strides, 0, dtype));
  Storage* storage = tensor->storage;
  storage->tag = static_cast<int64_t>(run.next);
  storage->data = static_cast<char*>(find_memory(run, storage->bytes));
  storage->dropped = note_dropped;
  tensor->data = storage->data;
  return tensor.release();
}

void copy_bytes(void* target, const void* source, int64_t bytes) {
  const Run& run = current_run();
  if (run.rehearsed || bytes == 0) return;
  check(driver().copy(reinterpret_cast<Address>(target), reinterpret_cast<Address>(source),
                      static_cast<size_t>(bytes), run.stream),
        "a copy");
}

}  // namespace ec::cuda
