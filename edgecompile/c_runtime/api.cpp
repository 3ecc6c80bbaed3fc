// The C runtime. Handles are numbers that are looked up and never used again, so that a call with
// a model that was closed is refused instead of reading freed memory.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "base/status.h"
#include "base/text.h"
#include "call/model.h"
#include "call/stream.h"

namespace {

using ecr::cat;
using ecr::fail;
using ecr::guarded;
using ecr::Model;
using ecr::Outputs;
using ecr::Stream;

// What handles of one kind stand for.
template <class Handle, class Object>
class Table {
 public:
  explicit Table(const char* missing) : missing_(missing) {}
  Handle* add(std::shared_ptr<Object> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++next_;
    objects_.emplace(next_, std::move(object));
    return reinterpret_cast<Handle*>(next_);
  }
  std::shared_ptr<Object> find(const Handle* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) fail(ECR_CLOSED, missing_);
    return found->second;
  }
  // Null where there is none.
  std::shared_ptr<Object> remove(const Handle* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto removed = objects_.extract(reinterpret_cast<uintptr_t>(handle));
    return removed.empty() ? nullptr : removed.mapped();
  }

 private:
  const char* const missing_;
  std::mutex mutex_;
  uintptr_t next_ = 0;
  std::map<uintptr_t, std::shared_ptr<Object>> objects_;
};

// Never destroyed: other threads may still run when a process ends.
Table<ecr_model, Model>& open_models() {
  static auto& models =
      *new Table<ecr_model, Model>("the model is closed, or the handle was never one");
  return models;
}

Table<ecr_stream, Stream>& open_streams() {
  static auto& streams =
      *new Table<ecr_stream, Stream>("the stream is closed, or the handle was never one");
  return streams;
}

void check_pointer(const void* pointer, const char* name) {
  if (pointer == nullptr) fail(ECR_INPUT, cat(name, " is a null pointer"));
}

int32_t run(ecr_model* model, std::optional<int32_t> bucket, const ecr_tensor* inputs,
            int64_t n_inputs, ecr_outputs** outputs) {
  return guarded([&] {
    check_pointer(outputs, "outputs");
    *outputs = open_models().find(model)->run(inputs, n_inputs, bucket).release();
  });
}

}  // namespace

int32_t ecr_abi_version(void) { return ECR_ABI_VERSION; }

const char* ecr_last_error(void) { return ecr::last_error(); }

int32_t ecr_open_versioned(int32_t abi_version, const char* path, const ecr_options* options,
                           ecr_model** model) {
  return guarded([&] {
    if (abi_version != ECR_ABI_VERSION) {
      fail(ECR_NATIVE,
           cat("the program was compiled for version ", abi_version,
               " of edgecompile_runtime.h, this library has version ", ECR_ABI_VERSION),
           "compile the program again with the header that belongs to the library");
    }
    check_pointer(path, "path");
    check_pointer(model, "model");
    const ecr_options defaults = {};
    auto opened = std::make_shared<Model>(path, options == nullptr ? defaults : *options);
    *model = open_models().add(std::move(opened));
  });
}

int32_t ecr_describe(ecr_model* model, char** json_text) {
  return guarded([&] {
    check_pointer(json_text, "json_text");
    const std::string text = open_models().find(model)->describe();
    auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, text.c_str(), text.size() + 1);
    *json_text = copy;
  });
}

void ecr_text_free(char* json_text) { std::free(json_text); }

int32_t ecr_get_signature(ecr_model* model, ecr_signature* signature) {
  return guarded([&] {
    check_pointer(signature, "signature");
    *signature = open_models().find(model)->signature();
  });
}

int32_t ecr_run(ecr_model* model, const ecr_tensor* inputs, int64_t n_inputs,
                ecr_outputs** outputs) {
  return run(model, std::nullopt, inputs, n_inputs, outputs);
}

int32_t ecr_run_bucket(ecr_model* model, int32_t bucket, const ecr_tensor* inputs, int64_t n_inputs,
                       ecr_outputs** outputs) {
  return run(model, bucket, inputs, n_inputs, outputs);
}

void ecr_outputs_free(ecr_outputs* outputs) { delete static_cast<Outputs*>(outputs); }

int32_t ecr_stream_open(ecr_model* model, ecr_stream** stream) {
  return guarded([&] {
    check_pointer(stream, "stream");
    auto opened = std::make_shared<Stream>(open_models().find(model));
    *stream = open_streams().add(std::move(opened));
  });
}

int32_t ecr_stream_run(ecr_stream* stream, const ecr_tensor* inputs, int64_t n_inputs,
                       ecr_outputs** outputs) {
  return guarded([&] {
    check_pointer(outputs, "outputs");
    *outputs = open_streams().find(stream)->run(inputs, n_inputs).release();
  });
}

int32_t ecr_stream_reset(ecr_stream* stream) {
  return guarded([&] { open_streams().find(stream)->reset(); });
}

void ecr_stream_close(ecr_stream* stream) {
  guarded([&] { open_streams().remove(stream); });
}

void ecr_close(ecr_model* model) {
  guarded([&] {
    const std::shared_ptr<Model> closed = open_models().remove(model);
    if (closed != nullptr) closed->close();
  });
}
