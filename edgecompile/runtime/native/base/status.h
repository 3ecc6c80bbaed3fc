// Errors inside the runtime: thrown as ec::Error, turned into a status code and a thread-local
// message at the C ABI. Nothing is ever thrown across it by these helpers.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace ec {

constexpr int32_t kSuccess = 0;
constexpr int32_t kFailure = 1;

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws Error with a printf-style message.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The calling thread's last error message; never null. Setting it cannot fail: when memory has run
// out, a fixed text stands in.
const char* last_error() noexcept;
void set_last_error(const char* message) noexcept;
void clear_last_error() noexcept;

// A failure in a place that could not report it: a parallel region of compiled code, which returns
// nothing. It makes every guarded() call of the thread fail until it is cleared, so that the model
// stops at its next call into the runtime. Null if there is none.
const char* pending_failure() noexcept;
void set_pending_failure(const char* message) noexcept;
void clear_pending_failure() noexcept;

// Runs body and maps exceptions to kFailure plus the last error, prefixed with the function's name.
void record_exception(const char* function, std::exception_ptr error) noexcept;

template <class Body>
int32_t guarded(const char* function, Body&& body) noexcept {
  if (const char* failure = pending_failure(); failure != nullptr) [[unlikely]] {
    set_last_error(failure);
    return kFailure;
  }
  try {
    body();
    return kSuccess;
  } catch (...) {
    record_exception(function, std::current_exception());
    return kFailure;
  }
}

// The same for functions whose status generated code drops: what fails in them makes the thread's
// next call fail.
template <class Body>
int32_t unchecked(const char* function, Body&& body) noexcept {
  const int32_t status = guarded(function, body);
  if (status != kSuccess && pending_failure() == nullptr) set_pending_failure(last_error());
  return status;
}

}  // namespace ec
