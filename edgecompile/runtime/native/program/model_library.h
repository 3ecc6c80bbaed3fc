// ModelLibrary: a shared library that AOTInductor generated, and the container it makes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "shim/handles.h"

namespace ec {

struct ConstantInfo {
  std::string name;  // within the model
  std::string fqn;   // what the exported program called it: the key of the weights file
  int32_t dtype;
  int64_t bytes;
};

// Loads the library and creates the container; the destructor undoes both. Every method throws
// Error on failure, with the model's own words in it. The functions and their meanings are those of
// torch/csrc/inductor/aoti_runtime/interface.h.
class ModelLibrary {
 public:
  // `device` as AOTInductor spells it. On a GPU one run goes on at a time, which the caller sees
  // to.
  ModelLibrary(const char* path, int32_t concurrency, const char* device = "cpu");
  ~ModelLibrary();
  ModelLibrary(const ModelLibrary&) = delete;
  ModelLibrary& operator=(const ModelLibrary&) = delete;

  int64_t input_count() const { return input_count_; }
  int64_t output_count() const { return static_cast<int64_t>(output_names_.size()); }
  const std::vector<std::string>& output_names() const { return output_names_; }

  // Constants that have to be supplied; what constant folding computes is not among them.
  std::vector<ConstantInfo> constants() const;

  struct NamedHandle {
    const char* name;
    AtenTensorHandle handle;
  };
  // The handles' memory stays borrowed, the handles themselves don't.
  void bind_constants(const std::vector<NamedHandle>& pairs);

  // Waits while as many runs go on as the library was opened for. Inputs that were taken over are
  // null in the array afterwards, also when the run fails.
  void run(AtenTensorHandle* inputs, AtenTensorHandle* outputs, void* stream = nullptr);

 private:
  template <class Function>
  void resolve(Function** function, const char* name, std::string* missing);
  void check(int32_t status, const char* step) const;
  void close() noexcept;

  using Status = int32_t;
  Status (*create_)(void**, size_t, const char*, const char*) = nullptr;
  Status (*delete_)(void*) = nullptr;
  Status (*run_)(void*, AtenTensorHandle*, size_t, AtenTensorHandle*, size_t, void*,
                 void*) = nullptr;
  Status (*num_inputs_)(void*, size_t*) = nullptr;
  Status (*num_outputs_)(void*, size_t*) = nullptr;
  Status (*output_name_)(void*, size_t, const char**) = nullptr;
  Status (*num_constants_)(void*, size_t*) = nullptr;
  Status (*constant_name_)(void*, size_t, const char**) = nullptr;
  Status (*constant_fqn_)(void*, size_t, const char**) = nullptr;
  Status (*constant_folded_)(void*, size_t, bool*) = nullptr;
  Status (*constant_dtype_)(void*, size_t, int32_t*) = nullptr;
  Status (*constant_bytes_)(void*, size_t, size_t*) = nullptr;
  Status (*bind_)(void*, const NamedHandle*, size_t, bool, bool) = nullptr;
  Status (*last_error_)(const char**) = nullptr;

  void* library_ = nullptr;
  void* container_ = nullptr;
  // Free runs. The container has a queue of its own, but a run that fails gives its model back
  // without waking anybody there (model_container.h of torch 2.13): who waits might wait forever.
  std::mutex mutex_;
  std::condition_variable freed_;
  int32_t free_ = 0;
  int64_t input_count_ = 0;
  std::vector<std::string> output_names_;
};

}  // namespace ec
