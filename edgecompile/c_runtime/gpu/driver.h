// CUDA's driver, libcuda by dlopen: nothing is linked against it, and no toolkit is needed.
//
// One GPU is used, the process' first: CUDA_VISIBLE_DEVICES says which that is. Its primary context
// is the one that CUDA's runtime library uses as well, so that other users of CUDA get on with
// this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "bundle/libraries.h"
#include "format/schema.h"

namespace ecr {

using Address = unsigned long long;  // CUdeviceptr: of the GPU's memory

// What CUDA or a program of it reported. The code is ECR_GPU, or ECR_NO_GPU where there is none
// that can be used.
class GpuError : public Error {
 public:
  GpuError(const std::string& text, const std::string& cure, int32_t cuda_number = 0,
           const std::string& cuda_name = "", int32_t code = ECR_GPU)
      : Error(code, text, cure), message(text), hint(cure), name(cuda_name), number(cuda_number) {}
  explicit GpuError(const std::string& text) : GpuError(text, "") {}

  // The same failure, told otherwise.
  GpuError retold(const std::string& text) const { return retold(text, hint); }
  GpuError retold(const std::string& text, const std::string& cure) const {
    return {text, cure, number, name, code()};
  }
  // Whether every further call of this process fails the same way.
  bool sticky() const;

  std::string message, hint, name;  // the name is CUDA's, as the number is; "" and 0: it has none
  int32_t number;
};

struct Device {
  std::string name;      // for people
  std::string raw_name;  // CUDA's
  Version capability;
  int32_t sm_count = 0;
  bool integrated = false;  // it shares the CPU's memory, as that of a Jetson does
  size_t memory = 0;        // bytes
  int32_t driver = 0;       // the newest CUDA that the driver knows, 12060 for 12.6
};
std::string cuda_version_text(int64_t number);  // "12.6" for 12060

class Driver : Fixed {
 public:
  // The library, loaded once per process, and at least one GPU, made ready. It is the file that the
  // environment variable EDGECOMPILE_CUDA_DRIVER names, else libcuda.so.1. Throws GpuError, of
  // ECR_NO_GPU but after a fork.
  static const Driver& load();

  const std::string& path() const { return path_; }
  Device describe() const;
  // Whether this process was forked after CUDA had been loaded: then it can't be used.
  static bool forked();
  static void check_not_forked();  // Throws GpuError.
  // The error of a number, which `text` describes.
  GpuError error(int32_t number, const std::string& text) const;

  // Lets the calling thread use the GPU while it lives, and then what it used before. Throws
  // GpuError, also after a fork.
  class Current : Fixed {
   public:
    explicit Current(const Driver& driver);
    ~Current();

   private:
    const Driver& driver_;
  };

 private:
  explicit Driver(const std::string& path);
  void start();
  GpuError failure(int32_t number, const char* name) const;  // of a function
  Functions functions_;
  std::string path_;
  void* context_ = nullptr;
  int32_t device_ = 0;
  int (*error_name_)(int, const char**) = nullptr;
  int (*error_string_)(int, const char**) = nullptr;

 public:
  // A function of the driver. Throws GpuError where it fails.
  template <class... Parameters>
  class Call {
   public:
    Call(Driver* driver, const char* name) : driver_(*driver), name_(name) {
      driver->functions_.find(&function_, name);
    }
    void operator()(Parameters... arguments) const {
      const int number = function_(arguments...);
      if (number != 0) throw driver_.failure(number, name_);
    }

   private:
    const Driver& driver_;
    const char* name_;
    int (*function_)(Parameters...) = nullptr;
  };

  // What is used didn't change between CUDA 11.4 and 13.
  Call<unsigned> init{this, "cuInit"};
  Call<int*> get_version{this, "cuDriverGetVersion"};
  Call<int*> get_count{this, "cuDeviceGetCount"};
  Call<int*, int> get_device{this, "cuDeviceGet"};
  Call<char*, int, int> get_name{this, "cuDeviceGetName"};
  Call<int*, int, int> get_attribute{this, "cuDeviceGetAttribute"};
  Call<void**, int> retain_context{this, "cuDevicePrimaryCtxRetain"};
  Call<void*> push_context{this, "cuCtxPushCurrent_v2"};
  Call<void**> pop_context{this, "cuCtxPopCurrent_v2"};
  Call<size_t*, size_t*> get_memory{this, "cuMemGetInfo_v2"};
  Call<Address*, size_t> allocate{this, "cuMemAlloc_v2"};
  Call<Address> release{this, "cuMemFree_v2"};
  Call<void**, size_t, unsigned> pin{this, "cuMemHostAlloc"};
  Call<Address*, void*, unsigned> find_pinned{this, "cuMemHostGetDevicePointer_v2"};
  Call<void*> unpin{this, "cuMemFreeHost"};
  Call<Address, const void*, size_t> upload{this, "cuMemcpyHtoD_v2"};
  Call<Address, const void*, size_t, void*> send{this, "cuMemcpyHtoDAsync_v2"};
  Call<void*, Address, size_t, void*> fetch{this, "cuMemcpyDtoHAsync_v2"};
  Call<Address, unsigned char, size_t, void*> fill{this, "cuMemsetD8Async"};
  Call<void**, unsigned> create_stream{this, "cuStreamCreate"};
  Call<void*> destroy_stream{this, "cuStreamDestroy_v2"};
  Call<void*> synchronize{this, "cuStreamSynchronize"};
  Call<void*, int> begin_capture{this, "cuStreamBeginCapture_v2"};
  Call<void*, void**> end_capture{this, "cuStreamEndCapture"};
  Call<void**, void*, unsigned long long> instantiate{this, "cuGraphInstantiateWithFlags"};
  Call<void*, void*> launch{this, "cuGraphLaunch"};
  Call<void*> destroy_executable{this, "cuGraphExecDestroy"};
  Call<void*> destroy_graph{this, "cuGraphDestroy"};
};

// Something of the driver's that is given back once: memory, a stream, a graph. After a fork, or an
// error that CUDA doesn't recover from, it is left as it is.
template <class Handle>
class Owned {
 public:
  Owned() = default;
  Owned(const Driver& driver, const Driver::Call<Handle>& free, Handle handle)
      : driver_(&driver), free_(&free), handle_(handle) {}
  Owned(Owned&& other) noexcept { *this = std::move(other); }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(free_, other.free_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ == Handle{}) return;
    try {
      const Driver::Current current(*driver_);
      (*free_)(handle_);
    } catch (const std::exception&) {
    }
  }
  Handle get() const { return handle_; }

 private:
  const Driver* driver_ = nullptr;
  const Driver::Call<Handle>* free_ = nullptr;
  Handle handle_ = {};
};

Owned<Address> allocate(const Driver& driver, int64_t nbytes);

}  // namespace ecr
