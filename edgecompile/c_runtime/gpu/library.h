// Binds the native runtime library for GPUs of a bundle (native/cuda/edgecompile_cuda_abi.h).
#pragma once

#include <string>
#include <vector>

#include "call/program.h"
#include "gpu/memory.h"

extern "C" {
struct ec_cuda_program;
}

namespace ecr {

// A loaded runtime library for GPUs; it stays loaded until the process ends.
class GpuLibrary {
 public:
  // For load_runtime. Throws Error ECR_NATIVE: rules native-functions, native-abi; and GpuError.
  GpuLibrary(void* handle, const std::string& label, const Driver* driver);

  // Throws GpuError with the library's own message if the status isn't 0, and CUDA's number where
  // there is one; Error ECR_MEMORY where the CPU's memory is lacking.
  void check(int32_t status, const std::string& doing) const;

 private:
  friend class GpuProgram;

  std::string label_;
  const Driver& driver_;
  int32_t (*abi_version_)() = nullptr;
  const char* (*last_error_)() = nullptr;
  int32_t (*last_number_)() = nullptr;
  int32_t (*load_driver_)(const char*) = nullptr;
  int32_t (*open_)(const char*, const NativeTensor*, int64_t, ec_cuda_program**) = nullptr;
  int64_t (*input_count_)(const ec_cuda_program*) = nullptr;
  int64_t (*output_count_)(const ec_cuda_program*) = nullptr;
  int32_t (*plan_)(ec_cuda_program*, const NativeTensor*, int64_t, NativeTensor*, int64_t, int64_t*,
                   int64_t*) = nullptr;
  int32_t (*load_)(ec_cuda_program*, int32_t) = nullptr;
  int32_t (*enqueue_)(ec_cuda_program*, const uint64_t*, int64_t, const uint64_t*, int64_t,
                      uint64_t, int64_t, void*) = nullptr;
  int32_t (*allow_numbers_)(ec_cuda_program*) = nullptr;
  int32_t (*results_)(const ec_cuda_program*, NativeTensor*, int64_t) = nullptr;
  int32_t (*use_cublaslt_)(ec_cuda_program*, int64_t, const int64_t*, int64_t) = nullptr;
  const char* (*cublaslt_failure_)(const ec_cuda_program*) = nullptr;
  void (*close_)(ec_cuda_program*) = nullptr;
};

// What a run of certain inputs will do: its outputs' shapes, scratch memory in bytes, launches.
struct Rehearsal {
  std::vector<Sizes> outputs;
  int64_t scratch_bytes = 0;
  int64_t launches = 0;
};

// One compiled bucket; not from two threads at once.
class GpuProgram : Fixed {
 public:
  // Loads it and binds its constants; the GPU isn't used. Everything that is given stays as long as
  // this. Throws Error.
  GpuProgram(const GpuLibrary& library, const PinnedLibrary& pinned, const DeviceWeights& weights,
             const Manifest& manifest);
  ~GpuProgram();

  const std::string& label() const { return label_; }
  // Makes these the shapes of the next runs, which are `user`'s, and tells what those will do.
  // Throws GpuError where the program refuses them, or its outputs have other types than the
  // manifest's.
  Rehearsal rehearse(const std::vector<Sizes>& inputs, const void* user = nullptr);
  // For whom it was rehearsed last; whoever runs it sees to it that this is himself.
  const void* user() const { return user_; }
  // Loads the kernels that rehearsals met. Throws GpuError.
  void load(const Version& capability);
  // Queues a run on a stream and doesn't wait. Throws GpuError.
  void enqueue(const std::vector<uint64_t>& inputs, const std::vector<uint64_t>& outputs,
               Address scratch, int64_t scratch_bytes, void* stream);
  // Lets cuBLASLt of a version compute product i of rows[i] rows and more, none where that is
  // negative; comes before rehearsals. Throws GpuError.
  void use_cublaslt(int64_t version, const std::vector<int64_t>& rows);
  // Why Triton's kernels compute what cuBLASLt was to, "" if nothing failed so far.
  std::string cublaslt_failure() const;
  // Leaves all products to Triton's kernels if cuBLASLt has failed; whether some were its own till
  // now. Throws GpuError.
  bool drop_cublaslt();
  // Says that no graph is captured, and that results() tells the outputs' shapes. Throws GpuError.
  void allow_numbers();
  // The shapes of the last run's outputs, where the values of its inputs decide about them. Throws
  // GpuError.
  std::vector<Sizes> results() const;

 private:
  const GpuLibrary& library_;
  const Manifest& manifest_;
  std::string label_;
  ec_cuda_program* handle_ = nullptr;
  const void* user_ = nullptr;
  bool uses_cublaslt_ = false;
};

}  // namespace ecr
