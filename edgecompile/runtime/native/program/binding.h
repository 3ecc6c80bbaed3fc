// Arrays of the caller, and constants, as a compiled model takes them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/edgecompile_abi.h"
#include "program/model_library.h"

namespace ec {

// Handles of one call; those that nobody took over are freed.
struct HandleArray {
  std::vector<AtenTensorHandle> handles;

  explicit HandleArray(int64_t count) : handles(static_cast<size_t>(count), nullptr) {}
  HandleArray(const HandleArray&) = delete;
  HandleArray& operator=(const HandleArray&) = delete;
  ~HandleArray() {
    for (AtenTensorHandle handle : handles) free_tensor(reinterpret_cast<Tensor*>(handle));
  }
};

// A handle that borrows the described memory; `what` says in errors what it is.
Tensor* borrow(const ec_tensor& tensor, const char* what);

// Gives a model its constants, which are looked up by their original names; throws Error with all
// that are missing or misfitting.
void bind_constants(ModelLibrary* library, const ec_tensor* constants, int64_t n_constants);

// A model that returns one tensor twice writes the same handle twice; each is to be freed.
void separate(std::vector<AtenTensorHandle>* handles);

}  // namespace ec
