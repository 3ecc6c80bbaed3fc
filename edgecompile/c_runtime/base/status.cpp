// Errors as exceptions within the library, and as a status with a text at its border.
#include "base/status.h"

#include <new>

namespace ecr {
namespace {

thread_local std::string t_text;
thread_local bool t_text_lost = false;

void set_last_error(const char* text) noexcept {
  try {
    t_text = text;
    t_text_lost = false;
  } catch (...) {
    t_text_lost = true;
  }
}

}  // namespace

const char* last_error() noexcept {
  return t_text_lost ? "out of memory while recording an error" : t_text.c_str();
}

int32_t record_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.code();
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory\nhint: free memory, or raise its limit: ulimit -v");
    return ECR_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
  } catch (...) {
    set_last_error("unknown exception");
  }
  return ECR_INTERNAL;
}

}  // namespace ecr
