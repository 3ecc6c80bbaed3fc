// Arrays of the caller, and constants, as a compiled model takes them.
#include "program/binding.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>

namespace ec {
namespace {

const char* name_of(const ec_tensor& tensor) { return tensor.name == nullptr ? "" : tensor.name; }

}  // namespace

Tensor* borrow(const ec_tensor& tensor, const char* what) {
  try {
    OwnedTensor borrowed(
        new_borrowed(tensor.data, tensor.ndim, tensor.sizes, tensor.strides, 0, tensor.dtype));
    if (borrowed->storage->bytes > tensor.nbytes) {
      fail("it describes %ld bytes but has %ld", borrowed->storage->bytes, tensor.nbytes);
    }
    return borrowed.release();
  } catch (const Error& error) {
    throw Error(std::string(what) + " '" + name_of(tensor) + "': " + error.what());
  }
}

void bind_constants(ModelLibrary* library, const ec_tensor* constants, int64_t n_constants) {
  std::unordered_map<std::string, const ec_tensor*> by_name;
  for (int64_t i = 0; i < n_constants; ++i) by_name.emplace(name_of(constants[i]), &constants[i]);

  const std::vector<ConstantInfo> wanted = library->constants();
  HandleArray handles(static_cast<int64_t>(wanted.size()));
  std::vector<ModelLibrary::NamedHandle> pairs;
  std::string missing;
  std::string wrong;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const ConstantInfo& info = wanted[i];
    const auto found = by_name.find(info.fqn);
    if (found == by_name.end()) {
      missing += (missing.empty() ? "" : ", ") + info.fqn;
      continue;
    }
    const ec_tensor& given = *found->second;
    // Code for CPUs rounds sizes up to 64 bytes, code for GPUs doesn't.
    const int64_t rounded = (given.nbytes + 63) / 64 * 64;
    if (given.dtype != info.dtype || (info.bytes != given.nbytes && info.bytes != rounded)) {
      wrong += (wrong.empty() ? "" : ", ") + info.fqn + " (" + dtype_name(given.dtype) + ", " +
               std::to_string(given.nbytes) + " bytes, the model wants " + dtype_name(info.dtype) +
               ", " + std::to_string(info.bytes) + " bytes)";
      continue;
    }
    handles.handles[i] = wrap(borrow(given, "constant"));
    pairs.push_back({info.name.c_str(), handles.handles[i]});
  }
  if (!missing.empty() || !wrong.empty()) {
    std::string text;
    if (!missing.empty()) text = "missing constants: " + missing;
    if (!wrong.empty()) text += (text.empty() ? "" : "; ") + ("misfitting constants: " + wrong);
    throw Error(text);
  }
  library->bind_constants(pairs);
}

void separate(std::vector<AtenTensorHandle>* handles) {
  for (size_t i = 1; i < handles->size(); ++i) {
    const auto end = handles->begin() + static_cast<std::ptrdiff_t>(i);
    const auto earlier = std::find(handles->begin(), end, *end);
    if (*end == nullptr || earlier == end) continue;
    *end = nullptr;  // should there be no memory for the alias
    *end = wrap(new_alias(*unwrap(*earlier)));
  }
}

}  // namespace ec
