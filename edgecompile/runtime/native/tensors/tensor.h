// Tensor: a strided view of reference-counted memory; what an AtenTensorHandle points to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "tensors/dtypes.h"

namespace ec {

constexpr int kMaxDims = 8;

// Memory shared by the tensors that view it. Owned memory comes from the caching allocator and
// follows the header in the same block; borrowed memory belongs to someone else.
struct Storage {
  std::atomic<int32_t> references;
  bool owned;
  size_t capacity;  // of the allocator's block, header included
  int64_t bytes;    // that tensors may view
  char* data;
  void (*dropped)(int64_t tag) = nullptr;  // called, unless null, when nobody views it any more
  int64_t tag = 0;
};

// Keeps track of the handles created while it is entered on a thread, so that their creator can
// free those that nobody freed. Needed for constants: AOTInductor's container makes a handle for
// every user-managed constant and forgets it. Thread safe; must outlive its handles.
class HandleScope;

struct Tensor {
  Storage* storage;
  char* data;      // of the first element
  int64_t offset;  // in elements, from the start of the storage
  int32_t dtype;
  int32_t dims;
  size_t capacity;  // of the allocator's block that holds this handle
  HandleScope* scope;
  Tensor* scope_previous;
  Tensor* scope_next;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];  // in elements

  int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < dims; ++i) count *= sizes[i];
    return count;
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

// Everything that makes a tensor returns a new handle, to be freed with free_tensor, and throws
// Error for bad dimensions (negative sizes, more than kMaxDims, views that leave their storage) or
// std::bad_alloc.
Tensor* new_empty(int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype);
Tensor* new_contiguous(int64_t dims, const int64_t* sizes, int32_t dtype);
Tensor* new_borrowed(void* data, int64_t dims, const int64_t* sizes, const int64_t* strides,
                     int64_t offset, int32_t dtype);
Tensor* new_view(const Tensor& base, int64_t dims, const int64_t* sizes, const int64_t* strides,
                 int64_t offset, int32_t dtype);  // offset in elements of dtype, from the storage
Tensor* new_alias(const Tensor& base);
Tensor* new_undefined();
void free_tensor(Tensor* tensor) noexcept;
void assign(const Tensor& source, Tensor* target);  // target becomes an alias of source

bool is_contiguous(const Tensor& tensor);
bool shares_memory(const Tensor& a, const Tensor& b);  // conservative: address ranges overlap
// Strides that aten::empty_like gives with memory_format=preserve.
void preserved_strides(const Tensor& like, int64_t* strides);
// Strides without gaps in the order of those of `like`: ATen's infer_dense_strides, with its way of
// sorting, which decides where the order is ambiguous. A dimension of stride 0 stays where it is.
void dense_strides(int dims, const int64_t* sizes, const int64_t* like, int64_t* strides);
void contiguous_strides(int64_t dims, const int64_t* sizes, int64_t* strides);

int64_t live_tensors() noexcept;  // handles that exist now

class HandleScope {
 public:
  HandleScope() = default;
  HandleScope(const HandleScope&) = delete;
  HandleScope& operator=(const HandleScope&) = delete;
  ~HandleScope() { free_remaining(); }

  void free_remaining() noexcept;

  // Handles made on this thread belong to the scope while an Entry lives.
  class Entry {
   public:
    explicit Entry(HandleScope* scope);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    HandleScope* previous_;
  };

 private:
  friend Tensor* new_handle();
  friend void free_tensor(Tensor*) noexcept;
  void add(Tensor* tensor);
  void remove(Tensor* tensor);

  Tensor* head_ = nullptr;
};

// Owns a handle for the length of a C++ scope.
class OwnedTensor {
 public:
  explicit OwnedTensor(Tensor* tensor = nullptr) : tensor_(tensor) {}
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
  ~OwnedTensor() { free_tensor(tensor_); }
  Tensor* get() const { return tensor_; }
  Tensor* operator->() const { return tensor_; }
  Tensor& operator*() const { return *tensor_; }
  void reset(Tensor* tensor) {
    free_tensor(tensor_);
    tensor_ = tensor;
  }
  Tensor* release() {
    Tensor* tensor = tensor_;
    tensor_ = nullptr;
    return tensor;
  }

 private:
  Tensor* tensor_;
};

}  // namespace ec
