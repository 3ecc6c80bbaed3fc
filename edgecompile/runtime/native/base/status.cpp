// Errors as exceptions within the library, and as a status with a text at its border.
#include "base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace ec {
namespace {

thread_local std::string t_message;
thread_local bool t_message_lost = false;
thread_local bool t_failed = false;
thread_local char t_failure[256];

}  // namespace

void fail(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Error(text);
}

const char* last_error() noexcept {
  return t_message_lost ? "out of memory while recording an error" : t_message.c_str();
}

void set_last_error(const char* message) noexcept {
  try {
    t_message = message;
    t_message_lost = false;
  } catch (...) {
    t_message_lost = true;
  }
}

void clear_last_error() noexcept {
  t_message.clear();
  t_message_lost = false;
}

const char* pending_failure() noexcept { return t_failed ? t_failure : nullptr; }

void set_pending_failure(const char* message) noexcept {
  std::strncpy(t_failure, message, sizeof t_failure - 1);
  t_failed = true;
}

void clear_pending_failure() noexcept { t_failed = false; }

void record_exception(const char* function, std::exception_ptr error) noexcept {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      set_last_error((std::string(function) + ": out of memory").c_str());
    } catch (const std::exception& caught) {
      set_last_error((std::string(function) + ": " + caught.what()).c_str());
    } catch (...) {
      set_last_error((std::string(function) + ": unknown exception").c_str());
    }
  } catch (...) {
    t_message_lost = true;
  }
}

}  // namespace ec
