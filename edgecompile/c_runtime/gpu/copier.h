// Copies of large inputs into pinned memory, in pieces and by a few threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace ecr {

// One copy is under way at a time.
class Copier : Fixed {
 public:
  // Inputs of so many bytes and more are copied by this. A smaller one takes a thread at most 0.1
  // ms, which is about what it costs to wake others and to send it in parts.
  static constexpr int64_t kLarge = 1 << 20;
  // Gets parts of a copy as they become whole, from the first byte to the last, in the caller's
  // thread.
  using Ready = std::function<void(int64_t start, int64_t end)>;

  // `threads`: of a copy, with the caller's; 0: as many as the CPUs allow. They start with the
  // first copy.
  explicit Copier(int threads = 0) : threads_(threads) {}
  ~Copier();  // Ends them, but those of another process, after a fork.
  // Copies, and returns or throws when no thread uses the memory any more. Throws what `ready`
  // throws.
  void copy(uint8_t* to, const uint8_t* from, int64_t nbytes, const Ready& ready);

 private:
  struct Team;
  int threads_;
  Team* team_ = nullptr;
};

}  // namespace ecr
