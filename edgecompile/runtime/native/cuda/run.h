// One run of a compiled program, rehearsed or real, and where its memory lies.
//
// A rehearsal goes through the program's host code with made-up addresses and launches nothing: it
// tells which memory the program asks for, in which order, and when it gives it back. From that
// follows one block for everything; a real run of the same shapes asks for the same and gets it
// there, without an allocator. All work is queued on one stream, so that memory given back may be
// used again at once.
//
// A program may read numbers from the GPU and take them for sizes. Rehearsals make them up: one
// takes the most that each may be, another one the least, and there is room for what either asks
// for.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/cublaslt.h"
#include "cuda/driver.h"
#include "tensors/tensor.h"

namespace ec::cuda {

class Kernel;

// Alignment of everything in the block, and of its start: what the driver's allocator gives.
constexpr int64_t kBlockAlignment = 256;

// Memory that a run asks for. It is the run's until `freed` requests have been made in all.
struct Request {
  int64_t bytes;
  int64_t freed = INT64_MAX;
  int32_t output = -1;  // the output that it becomes, which is none of the block's
  int64_t offset = 0;   // in the block

  bool overlaps(const Request& other, int64_t own_start, int64_t other_start) const {
    return own_start < other.freed && other_start < freed;
  }
};

// Gives every request that is no output its offset; returns the block's size in bytes. Large ones
// come first, each at the lowest place that is free for as long as it lives.
int64_t place_requests(std::vector<Request>* requests);

// What a number that is read from the GPU may be, both ends included.
struct NumberRange {
  int64_t least = 0, most = 0;
};

struct Run {
  // Of a rehearsal it grows, else it is followed.
  std::vector<Request>* requests = nullptr;
  bool rehearsed = false;
  size_t next = 0;
  char* block = nullptr;             // of a real run
  const Address* outputs = nullptr;  // where they go
  Stream stream = nullptr;
  int32_t capability = 0;                   // the device's, 87 for 8.7
  std::vector<Kernel*>* kernels = nullptr;  // that a rehearsal meets
  int64_t launches = 0;
  bool takes_least = false;      // of a rehearsal: numbers are the least that they may be
  NumberRange expected;          // of the next number
  bool reads_numbers = false;    // it has read one: requests may be smaller than planned
  Products* products = nullptr;  // the program's
  void* workspace = nullptr;     // of a real run, where cuBLASLt computes any of them
};

// The calling thread's run; throws Error where there is none.
Run& current_run();

// Makes a run the thread's for as long as it lives.
class RunScope {
 public:
  explicit RunScope(Run* run);
  ~RunScope();
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;
};

// A tensor in the run's memory; its values are undefined.
Tensor* new_device_tensor(int64_t dims, const int64_t* sizes, const int64_t* strides,
                          int32_t dtype);

// Queues a copy within the device's memory; of a rehearsal nothing is done.
void copy_bytes(void* target, const void* source, int64_t bytes);

// Readies a kernel for launches, on a thread with a current context. Throws Error.
void load_kernel(Kernel* kernel, int32_t capability);

}  // namespace ec::cuda
