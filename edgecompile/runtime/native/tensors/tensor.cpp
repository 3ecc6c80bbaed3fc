// Tensors, their storage, and views of it.
#include "tensors/tensor.h"

#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "base/allocator.h"

namespace ec {
namespace {

std::atomic<int64_t> g_live_tensors{0};
thread_local HandleScope* t_scope = nullptr;

// One lock for all scopes: they are used while programs open and close, never during runs.
std::mutex& scope_mutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

constexpr size_t kStorageHeader = kAlignment;
static_assert(sizeof(Storage) <= kStorageHeader);

Storage* new_owned_storage(int64_t bytes) {
  size_t capacity = 0;
  char* block =
      static_cast<char*>(allocate(kStorageHeader + static_cast<size_t>(bytes), &capacity));
  return new (block) Storage{{1}, true, capacity, bytes, block + kStorageHeader};
}

Storage* new_borrowed_storage(void* data, int64_t bytes) {
  size_t capacity = 0;
  void* block = allocate(kStorageHeader, &capacity);
  return new (block) Storage{{1}, false, capacity, bytes, static_cast<char*>(data)};
}

void drop_storage(Storage* storage) noexcept {
  if (storage == nullptr) return;
  if (storage->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (storage->dropped != nullptr) storage->dropped(storage->tag);
  release(storage, storage->capacity);
}

// Elements from the first to one past the last that the view touches.
int64_t extent(int64_t dims, const int64_t* sizes, const int64_t* strides) {
  int64_t last = 0;
  for (int64_t i = 0; i < dims; ++i) {
    if (sizes[i] == 0) return 0;
    int64_t step = 0;
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      fail("tensor is too large");
    }
  }
  return last + 1;
}

void check_shape(int64_t dims, const int64_t* sizes, const int64_t* strides) {
  if (dims < 0 || dims > kMaxDims) {
    fail("tensor has %ld dimensions, the runtime supports 0 to %d", dims, kMaxDims);
  }
  if (dims > 0 && (sizes == nullptr || strides == nullptr)) fail("sizes or strides are null");
  for (int64_t i = 0; i < dims; ++i) {
    if (sizes[i] < 0 || strides[i] < 0) {
      fail("dimension %ld has size %ld and stride %ld", i, sizes[i], strides[i]);
    }
  }
}

int64_t checked_bytes(int64_t elements, int64_t offset, int64_t item) {
  int64_t total = 0;
  if (offset < 0 || __builtin_add_overflow(elements, offset, &total) ||
      __builtin_mul_overflow(total, item, &total) || total > INT64_MAX / 2) {
    fail("tensor of %ld elements at offset %ld is too large", elements, offset);
  }
  return total;
}

void set_shape(Tensor* tensor, int64_t dims, const int64_t* sizes, const int64_t* strides) {
  tensor->dims = static_cast<int32_t>(dims);
  for (int64_t i = 0; i < dims; ++i) {
    tensor->sizes[i] = sizes[i];
    tensor->strides[i] = strides[i];
  }
}

}  // namespace

Tensor* new_handle() {
  size_t capacity = 0;
  void* block = allocate(sizeof(Tensor), &capacity);
  Tensor* tensor = new (block) Tensor;
  tensor->capacity = capacity;
  tensor->storage = nullptr;
  tensor->data = nullptr;
  tensor->offset = 0;
  tensor->dtype = kFloat32;
  tensor->dims = 0;
  tensor->scope = t_scope;
  if (tensor->scope != nullptr) tensor->scope->add(tensor);
  g_live_tensors.fetch_add(1, std::memory_order_relaxed);
  return tensor;
}

Tensor* new_empty(int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype) {
  check_shape(dims, sizes, strides);
  const int64_t item = element_size(dtype);
  const int64_t bytes = checked_bytes(extent(dims, sizes, strides), 0, item);
  OwnedTensor tensor(new_handle());
  set_shape(tensor.get(), dims, sizes, strides);
  tensor->dtype = dtype;
  tensor->storage = new_owned_storage(bytes);
  tensor->data = tensor->storage->data;
  return tensor.release();
}

Tensor* new_contiguous(int64_t dims, const int64_t* sizes, int32_t dtype) {
  int64_t strides[kMaxDims];
  if (dims < 0 || dims > kMaxDims) check_shape(dims, sizes, sizes);
  contiguous_strides(dims, sizes, strides);
  return new_empty(dims, sizes, strides, dtype);
}

Tensor* new_borrowed(void* data, int64_t dims, const int64_t* sizes, const int64_t* strides,
                     int64_t offset, int32_t dtype) {
  check_shape(dims, sizes, strides);
  const int64_t item = element_size(dtype);
  const int64_t elements = extent(dims, sizes, strides);
  const int64_t bytes = checked_bytes(elements, offset, item);
  if (data == nullptr && elements != 0) fail("data is null but the tensor has elements");
  OwnedTensor tensor(new_handle());
  set_shape(tensor.get(), dims, sizes, strides);
  tensor->dtype = dtype;
  tensor->offset = offset;
  tensor->storage = new_borrowed_storage(data, bytes);
  tensor->data = tensor->storage->data + offset * item;
  return tensor.release();
}

Tensor* new_view(const Tensor& base, int64_t dims, const int64_t* sizes, const int64_t* strides,
                 int64_t offset, int32_t dtype) {
  check_shape(dims, sizes, strides);
  if (base.storage == nullptr) fail("a view of an undefined tensor was asked for");
  const int64_t item = element_size(dtype);
  const int64_t elements = extent(dims, sizes, strides);
  const int64_t end = checked_bytes(elements, offset, item);
  if (elements != 0 && end > base.storage->bytes) {
    fail("a view of %ld bytes does not fit a storage of %ld bytes", end, base.storage->bytes);
  }
  Tensor* tensor = new_handle();
  set_shape(tensor, dims, sizes, strides);
  tensor->dtype = dtype;
  tensor->offset = offset;
  tensor->storage = base.storage;
  tensor->storage->references.fetch_add(1, std::memory_order_relaxed);
  tensor->data = tensor->storage->data + offset * item;
  return tensor;
}

Tensor* new_alias(const Tensor& base) {
  Tensor* tensor = new_handle();
  assign(base, tensor);
  return tensor;
}

Tensor* new_undefined() { return new_handle(); }

void assign(const Tensor& source, Tensor* target) {
  if (source.storage != nullptr) {
    source.storage->references.fetch_add(1, std::memory_order_relaxed);
  }
  drop_storage(target->storage);
  target->storage = source.storage;
  target->data = source.data;
  target->offset = source.offset;
  target->dtype = source.dtype;
  set_shape(target, source.dims, source.sizes, source.strides);
}

void free_tensor(Tensor* tensor) noexcept {
  if (tensor == nullptr) return;
  if (tensor->scope != nullptr) tensor->scope->remove(tensor);
  drop_storage(tensor->storage);
  g_live_tensors.fetch_sub(1, std::memory_order_relaxed);
  release(tensor, tensor->capacity);
}

bool is_contiguous(const Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  int64_t expected = 1;
  for (int i = tensor.dims - 1; i >= 0; --i) {
    if (tensor.sizes[i] == 1) continue;
    if (tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

bool shares_memory(const Tensor& a, const Tensor& b) {
  const int64_t bytes_a = extent(a.dims, a.sizes, a.strides) * element_size(a.dtype);
  const int64_t bytes_b = extent(b.dims, b.sizes, b.strides) * element_size(b.dtype);
  if (bytes_a == 0 || bytes_b == 0) return false;
  const auto first_a = reinterpret_cast<uintptr_t>(a.data);
  const auto first_b = reinterpret_cast<uintptr_t>(b.data);
  return first_a < first_b + static_cast<uintptr_t>(bytes_b) &&
         first_b < first_a + static_cast<uintptr_t>(bytes_a);
}

void contiguous_strides(int64_t dims, const int64_t* sizes, int64_t* strides) {
  int64_t step = 1;
  for (int64_t i = dims - 1; i >= 0; --i) {
    strides[i] = step;
    // Like ATen, an empty dimension counts as one. Overflow is caught where the memory is counted.
    if (sizes[i] > 1 && __builtin_mul_overflow(step, sizes[i], &step)) step = INT64_MAX;
  }
}

namespace {

// Whether the elements fill their memory without gaps and repetition, in any order of dimensions.
bool is_dense(const Tensor& tensor) {
  if (tensor.numel() == 0) return true;  // ATen says so
  int64_t filled = 1;
  int wide = 0;
  bool used[kMaxDims] = {};
  for (int i = 0; i < tensor.dims; ++i) wide += tensor.sizes[i] > 1;
  for (; wide > 0; --wide) {
    int next = -1;
    for (int i = 0; i < tensor.dims; ++i) {
      if (!used[i] && tensor.sizes[i] > 1 && tensor.strides[i] == filled) next = i;
    }
    if (next < 0) return false;
    used[next] = true;
    filled *= tensor.sizes[next];
  }
  return true;
}

}  // namespace

void dense_strides(int dims, const int64_t* sizes, const int64_t* like, int64_t* strides) {
  // Whether a has to be outside of b: 1 yes, -1 no, 0 it can't be told.
  const auto compare = [&](int a, int b) {
    if (like[a] == 0 || like[b] == 0) return 0;
    if (like[a] != like[b]) return like[a] > like[b] ? 1 : -1;
    return sizes[a] > sizes[b] ? 1 : 0;
  };
  int order[kMaxDims];  // innermost first
  for (int i = 0; i < dims; ++i) order[i] = dims - 1 - i;
  for (int i = 1; i < dims; ++i) {
    int inner = i;
    for (int outer = i - 1; outer >= 0; --outer) {
      const int comparison = compare(order[outer], order[inner]);
      if (comparison < 0) break;
      if (comparison == 0) continue;
      std::swap(order[outer], order[inner]);
      inner = outer;
    }
  }
  int64_t step = 1;
  for (int i = 0; i < dims; ++i) {
    strides[order[i]] = step;
    if (sizes[order[i]] > 1) step *= sizes[order[i]];
  }
}

void preserved_strides(const Tensor& like, int64_t* strides) {
  if (!is_dense(like)) return dense_strides(like.dims, like.sizes, like.strides, strides);
  for (int i = 0; i < like.dims; ++i) strides[i] = like.strides[i];
}

int64_t live_tensors() noexcept { return g_live_tensors.load(std::memory_order_relaxed); }

void HandleScope::add(Tensor* tensor) {
  std::lock_guard<std::mutex> lock(scope_mutex());
  tensor->scope_previous = nullptr;
  tensor->scope_next = head_;
  if (head_ != nullptr) head_->scope_previous = tensor;
  head_ = tensor;
}

void HandleScope::remove(Tensor* tensor) {
  std::lock_guard<std::mutex> lock(scope_mutex());
  if (tensor->scope_previous != nullptr) {
    tensor->scope_previous->scope_next = tensor->scope_next;
  } else {
    head_ = tensor->scope_next;
  }
  if (tensor->scope_next != nullptr) tensor->scope_next->scope_previous = tensor->scope_previous;
}

void HandleScope::free_remaining() noexcept {
  while (head_ != nullptr) free_tensor(head_);
}

HandleScope::Entry::Entry(HandleScope* scope) : previous_(t_scope) { t_scope = scope; }
HandleScope::Entry::~Entry() { t_scope = previous_; }

}  // namespace ec
