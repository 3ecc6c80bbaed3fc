// Kernels: their images in the program's library, and the driver's calls that compiled programs
// make.
//
// Programs call cuX, which the build renames ec_cuX. The driver is asked only when a kernel is
// needed for a run, so that rehearsals need no GPU.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "cuda/run.h"

namespace ec::cuda {
namespace {

// A kernel's images, as the build puts them behind the symbol that the program refers to.
constexpr char kMagic[8] = {'E', 'C', 'U', 'B', 'I', 'N', '1', '\0'};
constexpr uint32_t kPtx = uint32_t{1} << 31;
constexpr uint32_t kWaits = 1;
struct Header {
  char magic[8];
  uint32_t count, reserved;
};
struct Image {
  uint32_t arch;   // 87 for 8.7; with kPtx: for that and all later ones
  uint32_t flags;  // kWaits: it may begin before the kernel ahead of it ends, and waits itself
  uint64_t offset, size;  // from the header
};
constexpr uint32_t kMostImages = 64;

std::string spell(uint32_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

const Image& choose_image(const void* start, int32_t capability) {
  const auto* header = static_cast<const Header*>(start);
  if (std::memcmp(header->magic, kMagic, sizeof kMagic) != 0 || header->count > kMostImages) {
    fail("a kernel of the program has no images that this runtime knows");
  }
  const auto* images = reinterpret_cast<const Image*>(header + 1);
  const auto device = static_cast<uint32_t>(capability);
  const Image* best = nullptr;
  std::string there;
  for (uint32_t i = 0; i < header->count; ++i) {
    const bool is_ptx = (images[i].arch & kPtx) != 0;
    const uint32_t arch = images[i].arch & ~kPtx;
    there += (there.empty() ? "" : ", ") + spell(arch) + (is_ptx ? " and later (PTX)" : "");
    if (arch > device || (!is_ptx && arch / 10 != device / 10)) continue;
    // Machine code before PTX, the later one of two.
    const auto rank = [](const Image& image) {
      return (image.arch & kPtx) != 0 ? image.arch & ~kPtx : image.arch | kPtx;
    };
    if (best == nullptr || rank(images[i]) > rank(*best)) best = &images[i];
  }
  if (best == nullptr) {
    set_last_number(kNoBinary);
    fail("the kernels are for compute capability %s, this GPU has %s", there.c_str(),
         spell(device).c_str());
  }
  return *best;
}

constexpr int kSharedBytesAttribute = 8;          // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kErrorLog = 5, kErrorLogBytes = 6;  // CU_JIT_ERROR_LOG_BUFFER, ..._SIZE_BYTES

}  // namespace

// One of a module; the handle that a program holds as a CUfunction.
class Kernel {
 public:
  Kernel(const void* images, const char* name) : images_(images), name_(name) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() {
    if (module_ != nullptr) driver().module_unload(module_);
  }
  const char* name() const { return name_.c_str(); }
  DriverFunction function() const { return function_; }
  // Whether it waits for the kernel ahead of it; known once loaded.
  bool waits() const { return waits_; }
  void set_shared_bytes(int bytes) { shared_bytes_ = bytes; }
  void load(int32_t capability);

 private:
  const void* images_;
  std::string name_;
  int shared_bytes_ = 0;
  bool waits_ = false;
  DriverModule module_ = nullptr;
  DriverFunction function_ = nullptr;
};

void Kernel::load(int32_t capability) {
  if (function_ != nullptr) return;
  const Driver& calls = driver();
  const Image& image = choose_image(images_, capability);
  if (module_ == nullptr) {
    char log[512] = "";
    int options[] = {kErrorLog, kErrorLogBytes};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    const Result result = calls.module_load(
        &module_, static_cast<const char*>(images_) + image.offset, 2, options, values);
    if (result != kOk) {
      module_ = nullptr;
      note_failure(result, "loading the kernel", name());
      log[sizeof log - 1] = '\0';
      throw Error(std::string(last_error()) + (*log == '\0' ? "" : "; ") + log);
    }
  }
  DriverFunction found = nullptr;
  check(calls.get_function(&found, module_, name()), "finding the kernel", name());
  if (shared_bytes_ > 0) {
    check(calls.set_attribute(found, kSharedBytesAttribute, shared_bytes_), "the shared memory",
          name());
  }
  waits_ = (image.flags & kWaits) != 0;
  function_ = found;
}

void load_kernel(Kernel* kernel, int32_t capability) { kernel->load(capability); }

namespace {

// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: a kernel is put in place while the one
// ahead of it in the stream still runs.
constexpr LaunchAttribute kOverlapping = {6, 0, {1}};

// What a program holds as a CUmodule.
struct Module {
  const void* images;
  std::vector<std::unique_ptr<Kernel>> kernels;
};

// Runs body; a failure that isn't the driver's own counts as an invalid value.
template <class Body>
Result reported(const char* name, Body&& body) noexcept {
  if (guarded(name, body) == kSuccess) return kOk;
  if (last_number() == kOk) set_last_number(kInvalidValue);
  return last_number();
}

Result refuse(const char* name) noexcept {
  set_last_error((std::string(name) + ": a program may not call it").c_str());
  set_last_number(kNotSupported);
  return kNotSupported;
}

}  // namespace

EC_API Result ec_cuGetErrorString(Result number, const char** text) {
  // Programs ask after every call, and put the text into what they throw.
  *text = number == kOk ? "no error" : last_error();
  return kOk;
}

EC_API Result ec_cuModuleLoadData(Module** module, const void* images) {
  return reported("cuModuleLoadData", [&] { *module = new Module{images, {}}; });
}

EC_API Result ec_cuModuleUnload(Module* module) {
  delete module;
  return kOk;
}

EC_API Result ec_cuModuleGetFunction(Kernel** kernel, Module* module, const char* name) {
  return reported("cuModuleGetFunction", [&] {
    module->kernels.push_back(std::make_unique<Kernel>(module->images, name));
    *kernel = module->kernels.back().get();
  });
}

EC_API Result ec_cuFuncSetAttribute(Kernel* kernel, int attribute, int value) {
  if (attribute != kSharedBytesAttribute) return refuse("cuFuncSetAttribute");
  kernel->set_shared_bytes(value);
  return kOk;
}

EC_API Result ec_cuLaunchKernel(Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z,
                                unsigned shared_bytes, Stream stream, void** arguments,
                                void** extra) {
  return reported("cuLaunchKernel", [&] {
    Run& run = current_run();
    ++run.launches;
    if (run.rehearsed) {
      if (std::find(run.kernels->begin(), run.kernels->end(), kernel) == run.kernels->end()) {
        run.kernels->push_back(kernel);
      }
      return;
    }
    if (grid_x == 0 || grid_y == 0 || grid_z == 0) return;  // a size that was read is 0
    if (kernel->function() == nullptr) kernel->load(run.capability);
    const Driver& calls = driver();
    if (kernel->waits() && calls.launch_with != nullptr) {
      const LaunchConfig config = {{grid_x, grid_y, grid_z},
                                   {block_x, block_y, block_z},
                                   shared_bytes,
                                   stream,
                                   &kOverlapping,
                                   1};
      check(calls.launch_with(&config, kernel->function(), arguments, extra), "the launch",
            kernel->name());
      return;
    }
    check(calls.launch(kernel->function(), grid_x, grid_y, grid_z, block_x, block_y, block_z,
                       shared_bytes, stream, arguments, extra),
          "the launch", kernel->name());
  });
}

// The container folds constants in its first run, of which the build leaves none, marks that by an
// event and waits for it. So events are nothing here: nothing is under way that they could tell of.
EC_API Result ec_cuEventCreate(void** event, unsigned /*flags*/) {
  *event = nullptr;
  return kOk;
}
EC_API Result ec_cuEventRecord(void* /*event*/, Stream /*stream*/) { return kOk; }
EC_API Result ec_cuEventSynchronize(void* /*event*/) { return kOk; }
EC_API Result ec_cuEventDestroy_v2(void* /*event*/) { return kOk; }

// What torch's headers refer to and no run comes to: weights are the runtime's, runs are waited for
// outside, and nothing is loaded from files.
#define EC_REFUSE(name, ...) \
  EC_API Result ec_##name(__VA_ARGS__) { return refuse(#name); }
EC_REFUSE(cuModuleLoad, Module**, const char*)
EC_REFUSE(cuMemAlloc_v2, Address*, size_t)
EC_REFUSE(cuMemFree_v2, Address)
EC_REFUSE(cuMemcpy, Address, Address, size_t)
EC_REFUSE(cuMemcpyAsync, Address, Address, size_t, Stream)
EC_REFUSE(cuEventQuery, void*)
#undef EC_REFUSE

}  // namespace ec::cuda
