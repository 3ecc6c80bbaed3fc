// The C ABI by which Python runs a variant of a bundle with the C runtime's code for GPUs.
//
// Names in quotes are those of c_runtime/ first, and then of native/.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "bundle/limits.h"
#include "call/inputs.h"
#include "cuda/edgecompile_cuda_abi.h"
#include "gpu/programs.h"
#include "json/json.h"

static_assert(sizeof(ec_tensor) == sizeof(ecr::NativeTensor));

namespace {

ecr::Descriptor duplicate(const char* path, int folder_fd) {
  ecr::Descriptor copy(fcntl(folder_fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) ecr::fail_if_limit(errno, path);
  return copy;
}

}  // namespace

struct ec_gpu_variant {
  // Throws Error.
  ec_gpu_variant(const char* path, int32_t folder_fd, const char* manifest_sha256, const char* name)
      : folder(path, duplicate(path, folder_fd)) {
    if (folder.manifest_sha256() != manifest_sha256) {
      ecr::fail(ECR_BUNDLE, ecr::cat(path, ": was exchanged meanwhile"));
    }
    for (const ecr::Variant& item : folder.manifest().variants) {
      if (item.name == name && item.gpu) variant = &item;
    }
    if (variant == nullptr) ecr::fail(ECR_BUNDLE, ecr::cat(path, ": has no variant ", name));
  }

  ecr::BundleFolder folder;
  const ecr::Variant* variant = nullptr;
  std::unique_ptr<ecr::GpuPrograms> programs;
};

struct ec_gpu_results {
  std::vector<ecr::Array> arrays;
};

namespace {

using ecr::Array;
using ecr::cat;
using ecr::Sizes;

struct Failure {
  std::string message, hint, name;
  int32_t number = 0;
  bool sticky = false;
};
thread_local Failure t_failure;
thread_local std::string t_described;

// Nothing leaves `body` but a status.
template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    try {
      body();
      return ECR_OK;
    } catch (const ecr::GpuError& error) {
      t_failure = {error.message, error.hint, error.name, error.number, error.sticky()};
      return error.code();
    } catch (...) {
      const int32_t code = ecr::record_exception();
      t_failure = {ecr::last_error(), "", "", 0, false};
      return code;
    }
  } catch (...) {  // There is no memory for the texts.
    return ECR_MEMORY;
  }
}

ecr::GpuText* unwrap(ec_gpu_text* text) { return reinterpret_cast<ecr::GpuText*>(text); }

Sizes sizes_of(const ec_tensor& tensor) { return {tensor.sizes, tensor.sizes + tensor.ndim}; }

// The inputs of the manifest, those that are a text's caches without data.
std::vector<Array> take_inputs(const ecr::Manifest& manifest, bool has_text, const ec_tensor* given,
                               int64_t count) {
  std::vector<Array> arrays;
  int64_t used = 0;
  for (const ecr::TensorSpec& spec : manifest.inputs) {
    if (has_text && manifest.generation->is_cache(spec.name)) {
      const int64_t rows = ecr::context_rows(manifest);
      arrays.push_back(ecr::own_cache(manifest, spec, rows));
      continue;
    }
    if (used == count) break;
    const ec_tensor& tensor = given[used++];
    arrays.push_back(
        {spec.type, sizes_of(tensor), static_cast<const uint8_t*>(tensor.data), ecr::Buffer()});
  }
  if (used != count || arrays.size() != manifest.inputs.size()) {
    ecr::fail(ECR_INPUT, cat(count, " inputs were given for ", manifest.inputs.size()));
  }
  return arrays;
}

// Copies the leading part of an output to the caller's memory, or to memory that `results` gets.
void give_output(const ecr::TensorSpec& spec, const Sizes& sizes, const uint8_t* data,
                 ec_tensor* output, ec_gpu_results* results) {
  Sizes part = sizes_of(*output);
  if (output->data != nullptr) {
    const bool fits =
        part.size() == sizes.size() && std::equal(part.begin(), part.end(), sizes.begin(),
                                                  [](int64_t a, int64_t b) { return a <= b; });
    if (!fits) {
      throw ecr::GpuError(cat("an output has shape ", ecr::sizes_text(sizes), ", memory for ",
                              ecr::sizes_text(part), " was given"));
    }
    ecr::copy_box(static_cast<uint8_t*>(output->data),
                  {output->strides, output->strides + part.size()}, data, ecr::row_major(sizes),
                  part, spec.type->size);
    return;
  }
  results->arrays.push_back(ecr::cut(spec, sizes, data, part));
  const Array& array = results->arrays.back();
  output->data = array.owned.data();
  output->nbytes = ecr::count_elements(array.sizes) * spec.type->size;
  output->dtype = spec.type->code;
  std::copy(array.sizes.begin(), array.sizes.end(), output->sizes);
  const Sizes strides = ecr::row_major(array.sizes);
  std::copy(strides.begin(), strides.end(), output->strides);
}

void write_numbers(ecr::JsonWriter* out, const char* key, const std::vector<size_t>& numbers) {
  out->key(key).open('[');
  for (const size_t number : numbers) out->raw(cat(number));
  out->close(']');
}

}  // namespace

const char* ec_gpu_last_error(const char** hint, const char** name, int32_t* number,
                              int32_t* sticky) {
  *hint = t_failure.hint.c_str();
  *name = t_failure.name.c_str();
  *number = t_failure.number;
  *sticky = t_failure.sticky ? 1 : 0;
  return t_failure.message.c_str();
}

int32_t ec_gpu_open(const char* path, int32_t folder, const char* manifest_sha256,
                    const char* variant, const char* mode, int32_t check_weights,
                    const char* choice, ec_gpu_variant** out) {
  return guarded([&] {
    auto opened = std::make_unique<ec_gpu_variant>(path, folder, manifest_sha256, variant);
    std::optional<ecr::Tuned> chosen;
    if (choice != nullptr) chosen = ecr::read_choice(choice, "the choice", *opened->variant);
    opened->programs = std::make_unique<ecr::GpuPrograms>(opened->folder, *opened->variant, mode,
                                                          check_weights != 0, chosen);
    *out = opened.release();
  });
}

int32_t ec_gpu_read_tuning(const char* path, int32_t folder, const char* manifest_sha256,
                           const char* variant, const char** json) {
  return guarded([&] {
    const ec_gpu_variant found(path, folder, manifest_sha256, variant);
    const ecr::Device device = ecr::Driver::load().describe();
    const ecr::TuningRecord record =
        ecr::read_record(found.folder.manifest(), *found.variant, device);
    ecr::JsonWriter out;
    out.open('{').key("path").string(record.path).key("key").string(record.key);
    out.key("content").raw(record.content).key("device").raw(record.device);
    out.key("why").string(record.why);
    if (record.tuned) {
      ecr::write_choice(*record.tuned, &out);
      out.key("record").raw(record.text);
    }
    t_described = out.close('}').text();
    *json = t_described.c_str();
  });
}

int32_t ec_gpu_take_text(ec_gpu_variant* variant, ec_gpu_text** out) {
  return guarded([&] { *out = reinterpret_cast<ec_gpu_text*>(variant->programs->take_text()); });
}

void ec_gpu_give_back(ec_gpu_variant* variant, ec_gpu_text* text) {
  guarded([&] { variant->programs->give_back(unwrap(text)); });
}

int32_t ec_gpu_load(ec_gpu_variant* variant, ec_gpu_text* text, int64_t bucket) {
  return guarded([&] { variant->programs->load(static_cast<size_t>(bucket), unwrap(text)); });
}

int32_t ec_gpu_run(ec_gpu_variant* variant, ec_gpu_text* text, int64_t bucket,
                   const ec_tensor* inputs, int64_t n_inputs, ec_tensor* outputs, int64_t n_outputs,
                   ec_gpu_results** results) {
  return guarded([&] {
    const ecr::Manifest& manifest = variant->folder.manifest();
    if (n_outputs != static_cast<int64_t>(manifest.outputs.size())) {
      ecr::fail(ECR_INPUT, cat(n_outputs, " outputs were given for ", manifest.outputs.size()));
    }
    const std::vector<Array> arrays = take_inputs(manifest, text != nullptr, inputs, n_inputs);
    auto owned = std::make_unique<ec_gpu_results>();
    variant->programs->run(static_cast<size_t>(bucket), unwrap(text), arrays,
                           [&](size_t i, const Sizes& sizes, const uint8_t* data) {
                             give_output(manifest.outputs[i], sizes, data, &outputs[i],
                                         owned.get());
                           });
    *results = owned->arrays.empty() ? nullptr : owned.release();
  });
}

void ec_gpu_results_free(ec_gpu_results* results) { delete results; }

const char* ec_gpu_describe(ec_gpu_variant* variant) {
  const int32_t status = guarded([&] {
    ecr::GpuPrograms& programs = *variant->programs;
    ecr::JsonWriter out;
    out.open('{').key("info").open('{');
    programs.describe(&out);
    out.close('}');
    write_numbers(&out, "loaded", programs.loaded());
    std::vector<size_t> warms;
    for (size_t i = 0; i < programs.buckets().size(); ++i) {
      if (programs.warms_largest(i)) warms.push_back(i);
    }
    write_numbers(&out, "warms_largest", warms);
    out.key("broken").string(programs.broken()).close('}');
    t_described = out.text();
  });
  return status == ECR_OK ? t_described.c_str() : nullptr;
}

void ec_gpu_close(ec_gpu_variant* variant) { delete variant; }
