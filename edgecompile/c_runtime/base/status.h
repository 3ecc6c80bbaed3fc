// Errors inside the library: thrown as ecr::Error, turned into a status code and a thread-local
// text at the C interface.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "edgecompile_runtime.h"

namespace ecr {

// `code` is one of ECR_BUNDLE … ECR_INTERNAL; `hint` says the cure, and may be empty.
class Error : public std::exception {
 public:
  Error(int32_t code, const std::string& message, const std::string& hint = "")
      : code_(code), text_(hint.empty() ? message : message + "\nhint: " + hint) {}
  const char* what() const noexcept override { return text_.c_str(); }
  int32_t code() const { return code_; }

 private:
  int32_t code_;
  std::string text_;
};

[[noreturn]] inline void fail(int32_t code, const std::string& message,
                              const std::string& hint = "") {
  throw Error(code, message, hint);
}

// The base of what stays where it was made.
struct Fixed {
  Fixed() = default;
  Fixed(const Fixed&) = delete;
  Fixed& operator=(const Fixed&) = delete;
};

// The calling thread's text; never null. When memory has run out, a fixed text stands in.
const char* last_error() noexcept;

// Records what is being handled, and returns its code; to be called in a catch clause.
int32_t record_exception() noexcept;

// Runs `body` at the C interface: nothing leaves but a status.
template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return ECR_OK;
  } catch (...) {
    return record_exception();
  }
}

}  // namespace ecr
