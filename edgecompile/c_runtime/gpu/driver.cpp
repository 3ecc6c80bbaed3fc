// CUDA's driver, libcuda by dlopen.
#include "gpu/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/text.h"
#include "bundle/host.h"

namespace ecr {
namespace {

constexpr const char* kName = "libcuda.so.1";
constexpr const char* kVariable = "EDGECOMPILE_CUDA_DRIVER";
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr int kNoMemory = 2, kNotInitialized = 3, kNewerPtx = 222;
// Memory errors found by the hardware, faults and traps of kernels. Of 999, CUDA_ERROR_UNKNOWN,
// nothing better is known.
constexpr int kSticky[] = {214, 220, 226, 700, 702, 710, 714, 715,
                           716, 717, 718, 719, 721, 911, 999};
// CUdevice_attribute
constexpr int kSmCount = 16, kIntegrated = 18, kCanMapHost = 19, kMajor = 75, kMinor = 76;

std::atomic<bool> g_loaded{false}, g_forked{false};

[[noreturn]] void fail_without(const std::string& text, const std::string& hint = "") {
  throw GpuError(text, hint, 0, "", ECR_NO_GPU);
}

std::string why_none() {
  if (std::getenv(kVisible) != nullptr) {
    return cat(kVisible, " is ", quoted(variable(kVisible)),
               ": it says which GPUs this process may use");
  }
  return "nvidia-smi tells whether the driver finds a GPU; in a container it has to be passed on";
}

void* open_library(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* const told = dlerror();
  const std::string reason = told == nullptr ? "no reason given" : told;
  if (path != kName) {
    fail_without(cat(path, ", which ", kVariable, " names, can't be loaded: ", reason));
  }
  fail_without(cat("there is no NVIDIA driver: ", kName, " can't be loaded: ", reason),
               cat("install NVIDIA's driver, or name its library with ", kVariable));
}

}  // namespace

bool GpuError::sticky() const {
  return std::find(std::begin(kSticky), std::end(kSticky), number) != std::end(kSticky);
}

std::string cuda_version_text(int64_t number) {
  return cat(number / 1000, ".", number % 1000 / 10);
}

const Driver& Driver::load() {
  check_not_forked();
  static std::mutex& mutex = *new std::mutex;
  // By what the variable says.
  static auto& loaded = *new std::map<std::string, std::unique_ptr<const Driver>>;
  static const int watched = pthread_atfork(nullptr, nullptr, [] { g_forked = g_loaded.load(); });
  (void)watched;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string given = variable(kVariable);
  std::unique_ptr<const Driver>& found = loaded[given];
  if (found == nullptr) {
    std::unique_ptr<Driver> made(new Driver(given.empty() ? kName : given));
    made->start();
    found = std::move(made);
    g_loaded = true;
  }
  return *found;
}

Driver::Driver(const std::string& path) : functions_(open_library(path)), path_(path) {
  functions_.find(&error_name_, "cuGetErrorName");
  functions_.find(&error_string_, "cuGetErrorString");
}

void Driver::start() {
  if (!functions_.absent().empty()) {
    fail_without(cat(path_, ": has no ", join(functions_.absent())),
                 "CUDA 11.4 or newer is needed");
  }
  try {
    init(0);
    int count = 0;
    get_count(&count);
    if (count < 1) fail_without(path_ + ": finds no GPU", why_none());
    get_device(&device_, 0);
    retain_context(&context_, device_);
  } catch (const GpuError& error) {
    throw GpuError(error.message, error.hint.empty() ? why_none() : error.hint, error.number,
                   error.name, ECR_NO_GPU);
  }
}

bool Driver::forked() { return g_forked; }

void Driver::check_not_forked() {
  if (!forked()) return;
  throw GpuError(cat("process ", getpid(),
                     " was forked after CUDA had been loaded in its parent, and CUDA doesn't "
                     "survive a fork"),
                 "fork first and open the bundle in the child, or start processes afresh");
}

GpuError Driver::error(int32_t number, const std::string& text) const {
  const char* name = nullptr;
  error_name_(number, &name);
  std::string hint;
  if (number == kNoMemory) {
    hint = "end other users of the GPU's memory, or build the bundle for smaller buckets";
  } else if (number == kNotInitialized) {
    hint = "CUDA can't be used in a process that was forked after its parent had used it";
  } else if (number == kNewerPtx) {
    hint = "update NVIDIA's driver, or build the bundle for a target that includes this GPU";
  }
  return {text, hint, number, name == nullptr ? "" : name};
}

GpuError Driver::failure(int32_t number, const char* name) const {
  const GpuError known = error(number, "");
  const char* words = nullptr;
  error_string_(number, &words);
  return known.retold(cat(name, " failed: ", known.name.empty() ? "no name" : known.name, " (",
                          number, "): ", words == nullptr ? "" : words));
}

Device Driver::describe() const {
  const Current current(*this);
  const auto attribute = [this](int which) {
    int value = 0;
    get_attribute(&value, which, device_);
    return value;
  };
  Device device;
  char name[256] = "";
  get_name(name, sizeof name, device_);
  device.name = shorten(name, sizeof name);
  device.raw_name = name;
  device.capability = {attribute(kMajor), attribute(kMinor)};
  device.sm_count = attribute(kSmCount);
  device.integrated = attribute(kIntegrated) != 0 && attribute(kCanMapHost) != 0;
  size_t unused = 0;
  get_memory(&unused, &device.memory);
  get_version(&device.driver);
  return device;
}

Driver::Current::Current(const Driver& driver) : driver_(driver) {
  check_not_forked();
  driver_.push_context(driver_.context_);
}

Driver::Current::~Current() {
  void* own = nullptr;
  try {
    driver_.pop_context(&own);
  } catch (const std::exception&) {
  }
}

Owned<Address> allocate(const Driver& driver, int64_t nbytes) {
  Address address = 0;
  driver.allocate(&address, static_cast<size_t>(nbytes));
  return {driver, driver.release, address};
}

}  // namespace ecr
