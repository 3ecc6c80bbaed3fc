// Runs a bundle for a build host that can't load its code itself: a program of its own, started
// under an emulator and linked with the C runtime, which opens the bundle as it ships.
//
//   replay BUNDLE VARIANT
//
// Standard input has requests until it ends: int32 bucket, int32 count, then so many tensors.
// Standard output has one answer each: int32 status, int32 count, then so many tensors; or, where
// the status isn't 0, int32 size and so many bytes of a message. The first answer, without tensors,
// tells whether the bundle was opened. A tensor is int32 size and bytes of its name, int32 dtype,
// int32 ndim, int64 sizes, int64 nbytes and its data. All numbers are little-endian, as both sides
// are.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "edgecompile_runtime.h"

namespace {

// Nobody can be told where a pipe is broken or a request is cut off.
void read_bytes(void* data, size_t size) {
  if (std::fread(data, 1, size, stdin) != size) std::exit(74);
}

void write_bytes(const void* data, size_t size) {
  if (std::fwrite(data, 1, size, stdout) != size) std::exit(74);
}

template <typename T>
T read_number() {
  T value;
  read_bytes(&value, sizeof value);
  return value;
}

template <typename T>
void write_number(T value) {
  write_bytes(&value, sizeof value);
}

void write_text(const char* text) {
  const auto size = static_cast<int32_t>(std::strlen(text));
  write_number(size);
  write_bytes(text, size);
}

// The inputs of one request; owns what its tensors point to.
struct Inputs {
  std::deque<std::string> names;
  std::deque<std::vector<char>> data;
  std::vector<ecr_tensor> tensors;

  explicit Inputs(int32_t count) {
    for (int32_t i = 0; i < count; ++i) tensors.push_back(read_tensor());
  }

  ecr_tensor read_tensor() {
    ecr_tensor tensor = {};
    std::string& name = names.emplace_back(read_number<int32_t>(), '\0');
    read_bytes(name.data(), name.size());
    tensor.name = name.c_str();
    tensor.dtype = read_number<int32_t>();
    tensor.ndim = read_number<int32_t>();
    if (tensor.ndim < 0 || tensor.ndim > ECR_MAX_DIMS) std::exit(74);
    read_bytes(tensor.sizes, sizeof(int64_t) * tensor.ndim);
    tensor.nbytes = read_number<int64_t>();
    std::vector<char>& bytes = data.emplace_back(tensor.nbytes);
    read_bytes(bytes.data(), bytes.size());
    tensor.data = bytes.data();
    return tensor;
  }
};

void write_tensor(const ecr_tensor& tensor) {
  write_text(tensor.name);
  write_number(tensor.dtype);
  write_number(tensor.ndim);
  write_bytes(tensor.sizes, sizeof(int64_t) * tensor.ndim);
  write_number(tensor.nbytes);
  write_bytes(tensor.data, tensor.nbytes);
}

void answer(int32_t status, const ecr_outputs* outputs) {
  write_number(status);
  if (status != ECR_OK) {
    write_text(ecr_last_error());
  } else {
    const auto count = outputs == nullptr ? 0 : static_cast<int32_t>(outputs->count);
    write_number(count);
    for (int32_t i = 0; i < count; ++i) write_tensor(outputs->tensors[i]);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s BUNDLE VARIANT\n", argv[0]);
    return 2;
  }
  ecr_options options = {};
  options.variant = argv[2];
  options.lazy = 1;  // each program runs in its own case
  ecr_model* model = nullptr;
  const int32_t opened = ecr_open(argv[1], &options, &model);
  answer(opened, nullptr);
  if (opened != ECR_OK) return opened;
  for (int next; (next = std::getchar()) != EOF;) {
    std::ungetc(next, stdin);
    const auto bucket = read_number<int32_t>();
    const Inputs inputs(read_number<int32_t>());
    ecr_outputs* outputs = nullptr;
    const int32_t status = ecr_run_bucket(model, bucket, inputs.tensors.data(),
                                          static_cast<int64_t>(inputs.tensors.size()), &outputs);
    answer(status, outputs);
    ecr_outputs_free(outputs);
  }
  ecr_close(model);
  return ECR_OK;
}
