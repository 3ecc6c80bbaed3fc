// cuBLASLt by dlopen: nothing here is linked against it, and no header of NVIDIA's is needed. What
// is used is the same in the headers of 12 and 13; it ran with 13.1.0 alone.
#include "cuda/cublaslt.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/export.h"
#include "base/status.h"
#include "cuda/run.h"
#include "tensors/dtypes.h"

namespace ec::cuda {
namespace {

constexpr const char* kVariable = "EDGECOMPILE_CUBLASLT";
constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
// Pairs of product and rows whose descriptors are kept, a few hundred bytes each.
constexpr size_t kMostPrepared = 1024;

using Status = int;    // cublasStatus_t; 0 is success
using Opaque = void*;  // a handle, descriptor, layout or preference
struct Algorithm {     // cublasLtMatmulAlgo_t
  uint64_t data[8];
};
struct Found {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

// X(our name, cuBLASLt's, arguments)
#define EC_FOR_EACH_CUBLASLT_CALL(X)                                                          \
  X(create, cublasLtCreate, (Opaque*))                                                        \
  X(make_product, cublasLtMatmulDescCreate, (Opaque*, int, int))                              \
  X(drop_product, cublasLtMatmulDescDestroy, (Opaque))                                        \
  X(set_product, cublasLtMatmulDescSetAttribute, (Opaque, int, const void*, size_t))          \
  X(make_layout, cublasLtMatrixLayoutCreate, (Opaque*, int, uint64_t, uint64_t, int64_t))     \
  X(drop_layout, cublasLtMatrixLayoutDestroy, (Opaque))                                       \
  X(make_preference, cublasLtMatmulPreferenceCreate, (Opaque*))                               \
  X(drop_preference, cublasLtMatmulPreferenceDestroy, (Opaque))                               \
  X(set_preference, cublasLtMatmulPreferenceSetAttribute, (Opaque, int, const void*, size_t)) \
  X(find, cublasLtMatmulAlgoGetHeuristic,                                                     \
    (Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, int, Found*, int*))              \
  X(multiply, cublasLtMatmul,                                                                 \
    (Opaque, Opaque, const void*, const void*, Opaque, const void*, Opaque, const void*,      \
     const void*, Opaque, void*, Opaque, const Algorithm*, void*, size_t, Stream))

struct Library {
#define EC_DEFINE_CALL(name, symbol, arguments) Status(*name) arguments = nullptr;
  EC_FOR_EACH_CUBLASLT_CALL(EC_DEFINE_CALL)
#undef EC_DEFINE_CALL
  size_t (*get_version)() = nullptr;
  Opaque handle = nullptr;
  int64_t version = 0;
};

void check_status(Status status, const char* call) {
  if (status != 0) fail("%s failed with status %d", call, status);
}

// Finds the library's functions and makes a handle; throws Error.
std::unique_ptr<const Library> load(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    fail("cuBLASLt can't be loaded: %s", reason == nullptr ? path : reason);
  }
  auto found = std::make_unique<Library>();
  const auto resolve = [&](auto* call, const char* symbol) {
    void* address = dlsym(library, symbol);
    if (address == nullptr) fail("%s has no %s", path, symbol);
    static_assert(sizeof address == sizeof *call);
    std::memcpy(call, &address, sizeof address);
  };
#define EC_RESOLVE(name, symbol, arguments) resolve(&found->name, #symbol);
  EC_FOR_EACH_CUBLASLT_CALL(EC_RESOLVE)
#undef EC_RESOLVE
  resolve(&found->get_version, "cublasLtGetVersion");
  // It fails where the driver is too old.
  check_status(found->create(&found->handle), "cublasLtCreate");
  found->version = static_cast<int64_t>(found->get_version());
  return found;
}

// The library, or why there is none.
struct Search {
  std::unique_ptr<const Library> library;
  std::string failure;

  Search() {
    const char* given = std::getenv(kVariable);
    std::vector<const char*> names(std::begin(kNames), std::end(kNames));
    if (given != nullptr && *given != '\0') names = {given};
    for (const char* name : names) {
      try {
        library = load(name);
        return;
      } catch (const Error& error) {
        failure += (failure.empty() ? "" : "; ") + std::string(error.what());
      }
    }
  }
};

// It stays loaded: other programs, and other libraries of the process, may use it. Whoever comes
// first looks for it, once.
const Library& open_library() {
  static const Search search;
  if (search.library == nullptr) fail("%s", search.failure.c_str());
  return *search.library;
}

// cudaDataType_t
int type_of(int32_t dtype) {
  constexpr int kReal32 = 0, kReal16 = 2, kRealBrain16 = 14;
  return dtype == kFloat32 ? kReal32 : dtype == kFloat16 ? kReal16 : kRealBrain16;
}

// Something that the library made, until the end of a block.
class Made {
 public:
  explicit Made(Status (*drop)(Opaque)) : drop_(drop) {}
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() {
    if (made != nullptr) drop_(made);
  }
  Opaque made = nullptr;

 private:
  Status (*drop_)(Opaque);
};

// out = a * b' + bias: rows of a and of b lie one behind the other, `depth` long; those of out are
// `columns` long. `bias` may be null.
struct Product {
  int32_t dtype;
  int64_t rows, columns, depth;
  const void *a, *b, *bias;
  void* out;
};

// The algorithm that the library's model of the GPU says is the fastest.
Algorithm choose(const Library& library, Opaque product, Opaque b, Opaque a, Opaque out) {
  constexpr int kMostWorkspace = 1, kReductions = 3, kAlignment = 5;  // ..._PREF_...
  // Sums of parts of the depth are added up in float32, in a fixed order.
  constexpr uint32_t kInComputeType = 2;
  constexpr uint32_t kAligned = 16;
  constexpr auto kWorkspace = static_cast<uint64_t>(kWorkspaceBytes);
  Made preference(library.drop_preference);
  check_status(library.make_preference(&preference.made), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](int attribute, const void* value, size_t size) {
    check_status(library.set_preference(preference.made, attribute, value, size),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  set(kMostWorkspace, &kWorkspace, sizeof kWorkspace);
  set(kReductions, &kInComputeType, sizeof kInComputeType);
  for (int matrix = 0; matrix < 4; ++matrix) set(kAlignment + matrix, &kAligned, sizeof kAligned);
  Found found = {};
  int count = 0;
  check_status(
      library.find(library.handle, product, b, a, out, out, preference.made, 1, &found, &count),
      "cublasLtMatmulAlgoGetHeuristic");
  if (count < 1) fail("cuBLASLt has no algorithm for a product");
  check_status(found.state, "cublasLtMatmulAlgoGetHeuristic");
  return found.algorithm;
}

}  // namespace

// Matrices are columns to cuBLASLt, so it computes out' = b * a'.
struct Prepared {
  Made product, a, b, out;
  Algorithm algorithm;

  Prepared(const Library& library, const Product& item)
      : product(library.drop_product),
        a(library.drop_layout),
        b(library.drop_layout),
        out(library.drop_layout) {
    constexpr int kCompute32 = 68;                 // CUBLAS_COMPUTE_32F, which isn't TF32
    constexpr int kTransposed = 3, kEpilogue = 7;  // CUBLASLT_MATMUL_DESC_...
    constexpr int32_t kTranspose = 1;
    constexpr uint32_t kAddBias = 4;  // CUBLASLT_EPILOGUE_BIAS
    check_status(library.make_product(&product.made, kCompute32, type_of(kFloat32)),
                 "cublasLtMatmulDescCreate");
    set(library, kTransposed, kTranspose);
    if (item.bias != nullptr) set(library, kEpilogue, kAddBias);
    set_bias(library, item.bias);
    lay(library, item.dtype, &a, item.rows, item.depth);
    lay(library, item.dtype, &b, item.columns, item.depth);
    lay(library, item.dtype, &out, item.rows, item.columns);
    algorithm = choose(library, product.made, b.made, a.made, out.made);
  }

  void set_bias(const Library& library, const void* bias) {
    constexpr int kBias = 8;  // CUBLASLT_MATMUL_DESC_BIAS_POINTER
    if (bias != nullptr) set(library, kBias, bias);
  }

 private:
  template <class T>
  void set(const Library& library, int attribute, const T& value) {
    check_status(library.set_product(product.made, attribute, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
  }
  static void lay(const Library& library, int32_t dtype, Made* layout, int64_t lines,
                  int64_t size) {
    check_status(library.make_layout(&layout->made, type_of(dtype), static_cast<uint64_t>(size),
                                     static_cast<uint64_t>(lines), size),
                 "cublasLtMatrixLayoutCreate");
  }
};

namespace {

// Queues a product.
void multiply(const Library& library, const Product& item, std::shared_ptr<Prepared>* prepared,
              const Run& run) {
  if (*prepared == nullptr) *prepared = std::make_shared<Prepared>(library, item);
  Prepared& known = **prepared;
  known.set_bias(library, item.bias);
  constexpr float kOne = 1, kZero = 0;
  check_status(library.multiply(library.handle, known.product.made, &kOne, item.b, known.b.made,
                                item.a, known.a.made, &kZero, item.out, known.out.made, item.out,
                                known.out.made, &known.algorithm, run.workspace,
                                static_cast<size_t>(kWorkspaceBytes), run.stream),
               "cublasLtMatmul");
}

bool aligned(const Product& item) {
  const auto low = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16; };
  return (low(item.a) | low(item.b) | low(item.bias) | low(item.out)) == 0;
}

}  // namespace

int64_t cublaslt_version() { return open_library().version; }

// Computes the program's product of this number, or says that Triton's kernel has to: what fails
// here fails once, and is Triton's from then on.
EC_API bool ec_cuda_multiply(int64_t number, int32_t dtype, int64_t rows, int64_t columns,
                             int64_t depth, const void* a, const void* b, const void* bias,
                             void* out) {
  Run& run = current_run();
  Products* products = run.products;
  if (products == nullptr) return false;
  const auto index = static_cast<size_t>(number);
  if (run.rehearsed) {
    if (products->rows.size() <= index) products->rows.resize(index + 1);
    if (!run.takes_least) products->rows[index] = rows;
    return false;
  }
  if (index >= products->from.size()) return false;
  int64_t& from = products->from[index];
  const Product item = {dtype, rows, columns, depth, a, b, bias, out};
  if (from < 0 || rows < from || rows == 0 || !aligned(item)) return false;
  try {
    const Library& library = open_library();
    if (library.version != products->version) {
      fail("it was tuned with cuBLASLt %ld, this is %ld", products->version, library.version);
    }
    const std::pair<int64_t, int64_t> key(number, rows);
    if (products->prepared.size() >= kMostPrepared && products->prepared.count(key) == 0) {
      products->prepared.clear();
    }
    multiply(library, item, &products->prepared[key], run);
    return true;
  } catch (const std::exception& error) {
    from = -1;
    if (!products->failed) {
      products->failure = error.what();
      products->failed = true;
    }
    return false;
  }
}

}  // namespace ec::cuda
