// Loads a library that AOTInductor generated, and calls its container.
#include "program/model_library.h"

#include <dlfcn.h>

#include <cstring>

namespace ec {
namespace {

constexpr const char* kRunSingleThreaded = "AOTInductorModelContainerRunSingleThreaded";

}  // namespace

template <class Function>
void ModelLibrary::resolve(Function** function, const char* name, std::string* missing) {
  void* address = dlsym(library_, name);
  if (address == nullptr) *missing += std::string(missing->empty() ? "" : ", ") + name;
  static_assert(sizeof(address) == sizeof(*function));
  std::memcpy(function, &address, sizeof address);
}

ModelLibrary::ModelLibrary(const char* path, int32_t concurrency, const char* device) {
  if (path == nullptr || std::strchr(path, '/') == nullptr) {
    fail("model library '%s' is no path with a slash in it", path == nullptr ? "" : path);
  }
  if (concurrency < 1) fail("concurrency is %d, it must be at least 1", concurrency);
  library_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* reason = dlerror();
    fail("cannot load the model library: %s", reason == nullptr ? path : reason);
  }
  try {
    std::string missing;
    resolve(&create_, "AOTInductorModelContainerCreateWithDevice", &missing);
    resolve(&delete_, "AOTInductorModelContainerDelete", &missing);
    // The other one puts events into the stream and asks for them, which a captured stream forbids.
    const bool is_cpu = std::strcmp(device, "cpu") == 0;
    resolve(&run_, is_cpu ? "AOTInductorModelContainerRun" : kRunSingleThreaded, &missing);
    resolve(&num_inputs_, "AOTInductorModelContainerGetNumInputs", &missing);
    resolve(&num_outputs_, "AOTInductorModelContainerGetNumOutputs", &missing);
    resolve(&output_name_, "AOTInductorModelContainerGetOutputName", &missing);
    resolve(&num_constants_, "AOTInductorModelContainerGetNumConstants", &missing);
    resolve(&constant_name_, "AOTInductorModelContainerGetConstantName", &missing);
    resolve(&constant_fqn_, "AOTInductorModelContainerGetConstantOriginalFQN", &missing);
    resolve(&constant_folded_, "AOTInductorModelContainerGetConstantFromFolded", &missing);
    resolve(&constant_dtype_, "AOTInductorModelContainerGetConstantDtype", &missing);
    resolve(&constant_bytes_, "AOTInductorModelContainerGetConstantDataSize", &missing);
    resolve(&bind_, "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs", &missing);
    resolve(&last_error_, "AOTInductorGetLastError", &missing);
    if (!missing.empty()) {
      throw Error(std::string("not a model library, it lacks ") + missing + ": " + path);
    }
    check(create_(&container_, static_cast<size_t>(concurrency), device, nullptr),
          "creating the model");
    free_ = concurrency;
    size_t count = 0;
    check(num_inputs_(container_, &count), "counting inputs");
    input_count_ = static_cast<int64_t>(count);
    check(num_outputs_(container_, &count), "counting outputs");
    for (size_t i = 0; i < count; ++i) {
      const char* name = nullptr;
      check(output_name_(container_, i, &name), "naming outputs");
      output_names_.emplace_back(name == nullptr ? "" : name);
    }
  } catch (...) {
    close();
    throw;
  }
}

ModelLibrary::~ModelLibrary() { close(); }

void ModelLibrary::close() noexcept {
  if (container_ != nullptr) delete_(container_);
  container_ = nullptr;
  if (library_ != nullptr) dlclose(library_);
  library_ = nullptr;
}

void ModelLibrary::check(int32_t status, const char* step) const {
  if (status == kSuccess) return;
  // The model's message says which call failed, ours says why.
  const char* model_says = nullptr;
  if (last_error_ != nullptr) last_error_(&model_says);
  std::string text = std::string(step) + " failed";
  const std::string cause = last_error();
  if (!cause.empty()) text += ": " + cause;
  if (model_says != nullptr && *model_says != '\0' && cause != model_says) {
    text += cause.empty() ? ": " : "; in ";
    text += model_says;
  }
  throw Error(text);
}

std::vector<ConstantInfo> ModelLibrary::constants() const {
  size_t count = 0;
  check(num_constants_(container_, &count), "counting constants");
  std::vector<ConstantInfo> result;
  for (size_t i = 0; i < count; ++i) {
    bool folded = false;
    check(constant_folded_(container_, i, &folded), "reading constants");
    if (folded) continue;
    const char* name = nullptr;
    const char* fqn = nullptr;
    int32_t dtype = 0;
    size_t bytes = 0;
    check(constant_name_(container_, i, &name), "reading constants");
    check(constant_fqn_(container_, i, &fqn), "reading constants");
    check(constant_dtype_(container_, i, &dtype), "reading constants");
    check(constant_bytes_(container_, i, &bytes), "reading constants");
    result.push_back(
        {name, fqn == nullptr || *fqn == '\0' ? name : fqn, dtype, static_cast<int64_t>(bytes)});
  }
  return result;
}

void ModelLibrary::bind_constants(const std::vector<NamedHandle>& pairs) {
  check(bind_(container_, pairs.data(), pairs.size(), /*use_inactive=*/false,
              /*validate_full_update=*/true),
        "binding constants");
}

void ModelLibrary::run(AtenTensorHandle* inputs, AtenTensorHandle* outputs, void* stream) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    freed_.wait(lock, [this] { return free_ > 0; });
    --free_;
  }
  struct Turn {
    ModelLibrary* library;
    ~Turn() {
      {
        const std::lock_guard<std::mutex> lock(library->mutex_);
        ++library->free_;
      }
      library->freed_.notify_one();
    }
  };
  int32_t status;
  {
    const Turn turn{this};
    status = run_(container_, inputs, static_cast<size_t>(input_count_), outputs,
                  output_names_.size(), stream, nullptr);
  }
  check(status, "running the model");
}

}  // namespace ec
