// CUDA's driver by dlopen: nothing here is linked against it.
#include "cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "base/status.h"

namespace ec::cuda {
namespace {

thread_local Result t_number = kOk;
std::atomic<const Driver*> g_driver{nullptr};

const char* describe(Result number, Result (*ask)(Result, const char**)) {
  const char* text = nullptr;
  return ask(number, &text) == kOk && text != nullptr ? text : "unknown error";
}

}  // namespace

void load_driver(const char* path) {
  static std::mutex mutex;
  static std::string loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  if (g_driver.load() != nullptr) {
    if (loaded != path) fail("the driver %s is loaded, not %s", loaded.c_str(), path);
    return;
  }
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    fail("cannot load CUDA's driver: %s", reason == nullptr ? path : reason);
  }
  static Driver found;
  std::string missing;
  const auto resolve = [&](auto* call, const char* symbol) {
    void* address = dlsym(library, symbol);
    if (address == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
    static_assert(sizeof address == sizeof *call);
    std::memcpy(call, &address, sizeof address);
  };
#define EC_RESOLVE(name, symbol, arguments) resolve(&found.name, #symbol);
  EC_FOR_EACH_DRIVER_CALL(EC_RESOLVE)
#undef EC_RESOLVE
  if (!missing.empty()) {
    dlclose(library);
    fail("%s has no %s: CUDA 11.4 or newer is needed", path, missing.c_str());
  }
  constexpr int kGraphsHoldAttributes = 12030;
  int version = 0;
  if (found.get_version(&version) == kOk && version >= kGraphsHoldAttributes) {
    void* address = dlsym(library, "cuLaunchKernelEx");
    std::memcpy(&found.launch_with, &address, sizeof address);
  }
  loaded = path;
  g_driver.store(&found);
}

const Driver& driver() {
  const Driver* loaded = g_driver.load(std::memory_order_acquire);
  if (loaded == nullptr) fail("CUDA's driver isn't loaded");
  return *loaded;
}

Result last_number() noexcept { return t_number; }
void set_last_number(Result number) noexcept { t_number = number; }

Result note_failure(Result number, const char* doing, const char* of) noexcept {
  t_number = number;
  try {
    const Driver& calls = driver();
    std::string text = doing;
    if (*of != '\0') text += std::string(" of ") + of;
    text += std::string(" failed: ") + describe(number, calls.get_error_name) + " (" +
            std::to_string(number) + "): " + describe(number, calls.get_error_string);
    set_last_error(text.c_str());
  } catch (...) {
    set_last_error(doing);
  }
  return number;
}

void check(Result number, const char* doing, const char* of) {
  if (number == kOk) return;
  note_failure(number, doing, of);
  throw Error(last_error());
}

}  // namespace ec::cuda
