// Binds the native runtime library of a bundle (edgecompile_abi.h) and runs compiled programs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bundle/libraries.h"
#include "bundle/weights.h"
#include "call/arrays.h"

extern "C" {
struct ec_program;
struct ec_outputs;
}

namespace ecr {

// ec_tensor of edgecompile_abi.h.
struct NativeTensor {
  const char* name = nullptr;
  void* data = nullptr;
  int64_t nbytes = 0;
  int32_t dtype = 0;
  int32_t ndim = 0;
  int64_t sizes[ECR_MAX_DIMS] = {};
  int64_t strides[ECR_MAX_DIMS] = {};
};

// Of a row-major array.
NativeTensor describe_tensor(const ElementType& type, const Sizes& sizes, const uint8_t* data);

// Throws Error ECR_BUNDLE: rule program-signature.
void check_counts(const std::string& label, const Manifest& manifest, int64_t n_inputs,
                  int64_t n_outputs);

// A loaded runtime library; it stays loaded until the process ends.
class RuntimeLibrary {
 public:
  // For load_runtime. Throws Error ECR_NATIVE: rules native-functions, native-abi.
  RuntimeLibrary(void* handle, const std::string& label);

  const std::string& label() const { return label_; }
  int32_t threads() const { return get_num_threads_(); }
  void set_threads(int32_t count) const;
  // Gives buffers that are kept for reuse back to the system.
  void trim() const { trim_(); }
  // Throws Error ECR_NATIVE with the library's own message if the status isn't 0.
  void check(int32_t status, const std::string& doing) const;
  // What the calling thread's last failing call said; "" where that was nothing.
  std::string error_text() const;

 private:
  friend class Program;
  friend class ProgramOutputs;

  std::string label_;
  int32_t (*abi_version_)() = nullptr;
  const char* (*last_error_)() = nullptr;
  int32_t (*set_num_threads_)(int32_t) = nullptr;
  int32_t (*get_num_threads_)() = nullptr;
  int32_t (*program_open_)(const char*, const NativeTensor*, int64_t, int32_t,
                           ec_program**) = nullptr;
  int32_t (*program_run_)(ec_program*, const NativeTensor*, int64_t, ec_outputs**) = nullptr;
  int64_t (*program_input_count_)(const ec_program*) = nullptr;
  int64_t (*program_output_count_)(const ec_program*) = nullptr;
  void (*program_close_)(ec_program*) = nullptr;
  int64_t (*outputs_count_)(const ec_outputs*) = nullptr;
  int32_t (*outputs_get_)(const ec_outputs*, int64_t, NativeTensor*) = nullptr;
  void (*outputs_free_)(ec_outputs*) = nullptr;
  void (*trim_)() = nullptr;
};

// What one run gave; frees native memory when it goes.
class ProgramOutputs : Fixed {
 public:
  ProgramOutputs(const RuntimeLibrary& library, ec_outputs* handle)
      : library_(library), handle_(handle) {}
  ~ProgramOutputs() { library_.outputs_free_(handle_); }

  int64_t count() const { return library_.outputs_count_(handle_); }
  // Output i as a row-major array, cut to `crop` (sizes; -1 for all there is). Its memory is the
  // native outputs' where they have it so. Throws Error ECR_NATIVE.
  Array take(int64_t i, const Sizes& crop, const std::string& label) const;

 private:
  const RuntimeLibrary& library_;
  ec_outputs* handle_;
};

// One compiled bucket. `run` may be called from several threads. Nothing is checked that the caller
// has checked: a wrong number of inputs or a wrong dtype can end the process.
class Program : Fixed {
 public:
  // `weights` stays mapped until the program goes. Throws Error ECR_NATIVE.
  Program(const RuntimeLibrary& library, const PinnedLibrary& pinned,
          std::shared_ptr<const Weights> weights, int32_t concurrency);
  ~Program();

  const std::string& label() const { return label_; }
  int64_t input_count() const { return library_.program_input_count_(handle_); }
  int64_t output_count() const { return library_.program_output_count_(handle_); }
  std::unique_ptr<ProgramOutputs> run(const std::vector<Array>& arrays) const;

 private:
  const RuntimeLibrary& library_;
  std::string label_;
  std::shared_ptr<const Weights> weights_;
  ec_program* handle_ = nullptr;
};

}  // namespace ecr
