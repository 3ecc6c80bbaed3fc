// A caller's tensors, held against the signature before native code sees them.
#include "call/inputs.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/text.h"

namespace ecr {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& text) {
  fail(ECR_INPUT, cat("input ", name, ": ", text));
}

bool is_cache(const Manifest& manifest, const TensorSpec& spec) {
  return manifest.generation && manifest.generation->is_cache(spec.name);
}

// Whether none of the caches of a generative program is given.
bool leaves_caches_out(const Manifest& manifest, const std::vector<const ecr_tensor*>& slots) {
  if (!manifest.generation) return false;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] != nullptr && is_cache(manifest, manifest.inputs[i])) return false;
  }
  return true;
}

// Which tensor is which input; null where the input's default, or the model's own cache, stands for
// it.
std::vector<const ecr_tensor*> match_names(const Manifest& manifest, const ecr_tensor* tensors,
                                           int64_t count) {
  std::vector<const ecr_tensor*> slots(manifest.inputs.size(), nullptr);
  for (int64_t i = 0; i < count; ++i) {
    if (tensors[i].name == nullptr) refuse(cat("number ", i), "has no name");
    const std::optional<size_t> input = manifest.find_input(tensors[i].name);
    if (!input) refuse(shorten(tensors[i].name), "the model has no such input");
    if (slots[*input] != nullptr) refuse(tensors[i].name, "is given twice");
    slots[*input] = &tensors[i];
  }
  const bool own_text = leaves_caches_out(manifest, slots);
  for (size_t i = 0; i < slots.size(); ++i) {
    const TensorSpec& spec = manifest.inputs[i];
    const bool has_other = is_cache(manifest, spec) ? own_text : spec.fallback.has_value();
    if (slots[i] == nullptr && !has_other) {
      refuse(spec.name, "is missing");
    }
  }
  return slots;
}

// Whether every value of an integer or boolean type is one of `to`.
bool widens(const ElementType& from, const ElementType& to) {
  if (from.kind == Kind::kFloat || (to.kind != Kind::kSigned && to.kind != Kind::kUnsigned)) {
    return false;
  }
  if (from.kind == Kind::kBoolean) return true;
  if (from.kind == to.kind) return from.size <= to.size;
  return from.kind == Kind::kUnsigned && from.size < to.size;
}

template <class T>
T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Both are little-endian.
int64_t load_integer(const ElementType& type, const uint8_t* at) {
  uint64_t value = 0;
  std::memcpy(&value, at, static_cast<size_t>(type.size));
  const auto unused = static_cast<int>(64 - 8 * type.size);
  if (type.kind != Kind::kSigned) return static_cast<int64_t>(value);
  return static_cast<int64_t>(value << unused) >> unused;
}

// The values as an aligned array of the input's type.
Array convert(const TensorSpec& spec, const ecr_tensor& tensor) {
  const ElementType* const type = find_type(tensor.dtype);
  if (type == nullptr || (type != spec.type && !widens(*type, *spec.type))) {
    refuse(spec.name,
           cat("has dtype ", type == nullptr ? cat("code ", tensor.dtype) : std::string(type->name),
               ", must be ", spec.type->name));
  }
  if (tensor.ndim < 0 || tensor.ndim > ECR_MAX_DIMS) {
    refuse(spec.name, cat("has ", tensor.ndim, " dimensions, must have ", spec.shape.size()));
  }
  Array array;
  array.type = spec.type;
  array.sizes.assign(tensor.sizes, tensor.sizes + tensor.ndim);
  int64_t nbytes = type->size;
  int64_t widened = spec.type->size;
  for (const int64_t size : array.sizes) {
    if (size < 0 || __builtin_mul_overflow(nbytes, size, &nbytes) ||
        __builtin_mul_overflow(widened, size, &widened)) {
      refuse(spec.name, "has impossible sizes " + sizes_text(array.sizes));
    }
  }
  if (tensor.nbytes != nbytes || (tensor.data == nullptr && nbytes != 0)) {
    refuse(spec.name, cat("has ", tensor.data == nullptr ? "no data, " : "", tensor.nbytes,
                          " bytes, but ", type->name, sizes_text(array.sizes), " has ", nbytes));
  }
  array.data = static_cast<const uint8_t*>(tensor.data);
  if (type->kind == Kind::kBoolean) {
    const uint8_t* const end = array.data + nbytes;
    const uint8_t* const bad = std::find_if(array.data, end, [](uint8_t byte) { return byte > 1; });
    if (bad != end) {
      refuse(spec.name,
             cat("byte ", bad - array.data, " is ", int{*bad}, ", a bool must be 0 or 1"));
    }
  }
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(type->size) == 0;
  if (type == spec.type && is_aligned) return array;
  Array own = make_array(*spec.type, array.sizes);
  if (type == spec.type) {
    if (nbytes > 0) std::memcpy(own.owned.data(), array.data, static_cast<size_t>(nbytes));
    return own;
  }
  const int64_t count = count_elements(own.sizes);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = load_integer(*type, array.data + i * type->size);
    std::memcpy(own.owned.data() + i * spec.type->size, &value,
                static_cast<size_t>(spec.type->size));
  }
  return own;
}

// Sizes of axes as they are met; -1 before.
class ShapeChecker {
 public:
  explicit ShapeChecker(const Manifest& manifest)
      : manifest_(manifest), sizes_(manifest.axes.size(), -1), seen_(manifest.axes.size()) {}

  const Sizes& sizes() const { return sizes_; }

  void check(const TensorSpec& spec, const Sizes& shape) {
    if (shape.size() != spec.shape.size()) {
      const auto dim_text = [this](const Dim& dim) {
        return dim.kind == Dim::Kind::kAxis  ? manifest_.axes[dim.axis].name
               : dim.kind == Dim::Kind::kSum ? dim.sum.text
                                             : cat(dim.size);
      };
      refuse(spec.name,
             cat("has shape ", sizes_text(shape), " with ", shape.size(), " dimensions, must be [",
                 join(spec.shape, dim_text), "] with ", spec.shape.size()));
    }
    for (size_t i = 0; i < shape.size(); ++i) {
      const Dim& dim = spec.shape[i];
      if (dim.kind == Dim::Kind::kFixed) {
        if (shape[i] == dim.size) continue;
        refuse(spec.name, cat("dimension ", i, " has size ", shape[i], ", must be ", dim.size));
      } else if (dim.kind == Dim::Kind::kSum) {
        later_.push_back({&spec, i, shape[i]});
      } else if (sizes_[dim.axis] < 0) {
        sizes_[dim.axis] = shape[i];
        seen_[dim.axis] = cat("dimension ", i, " of ", spec.name);
      } else if (sizes_[dim.axis] != shape[i]) {
        refuse(spec.name, cat("dimension ", i, " (", manifest_.axes[dim.axis].name, ") has size ",
                              shape[i], ", but ", seen_[dim.axis], " has ", sizes_[dim.axis]));
      }
    }
  }

  // Sizes that follow from axes, once the sizes of the axes are known; those of some axes follow
  // from them.
  void check_sums() {
    for (bool is_new = true; is_new;) {
      is_new = false;
      for (const Later& item : later_) {
        const Sum& sum = item.spec->shape[item.dim].sum;
        const std::optional<size_t> axis = sum.unknown(sizes_);
        if (!axis) continue;
        const std::optional<int64_t> size = sum.solve(*axis, item.size, sizes_);
        if (!size) {
          refuse(item.spec->name, cat("dimension ", item.dim, " (", sum.text, ") has size ",
                                      item.size, ", which it has for no size of its axes"));
        }
        sizes_[*axis] = *size;
        is_new = true;
      }
    }
    for (const Later& item : later_) {
      const Sum& sum = item.spec->shape[item.dim].sum;
      if (!sum.is_known(sizes_) || sum.at(sizes_) == item.size) continue;
      refuse(item.spec->name, cat("dimension ", item.dim, " (", sum.text, ") has size ", item.size,
                                  ", must be ", sum.at(sizes_)));
    }
  }

 private:
  struct Later {
    const TensorSpec* spec;
    size_t dim;
    int64_t size;
  };

  const Manifest& manifest_;
  Sizes sizes_;
  std::vector<Later> later_;
  std::vector<std::string> seen_;
};

std::string position_text(int64_t index, const Sizes& sizes) {
  Sizes position(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    position[i] = index % sizes[i];
    index /= sizes[i];
  }
  return sizes_text(position);
}

using Bounds = std::pair<Number, Number>;

// The bounds of an input that has some, where axes have these sizes.
Bounds find_bounds(const TensorSpec& spec, const Sizes& sizes) {
  Bounds bounds = *spec.bounds;
  const auto& [low, high] = spec.reach;
  if (low) bounds.first = {static_cast<long double>(low->at(sizes))};
  if (high) bounds.second = {static_cast<long double>(high->at(sizes))};
  return bounds;
}

// `Stored` is how a value is stored, `value_of` what it means.
template <class Stored, class ValueOf>
void check_values(const TensorSpec& spec, const Bounds& bounds, const Array& array,
                  ValueOf value_of) {
  uint8_t ends[2][8] = {};
  // Bounds are rounded to the input's type as numpy does: 0.1f isn't above a bound of 0.1.
  encode(*spec.type, bounds.first, ends[0]);
  encode(*spec.type, bounds.second, ends[1]);
  const auto low = value_of(load<Stored>(ends[0]));
  const auto high = value_of(load<Stored>(ends[1]));
  const auto* const values = reinterpret_cast<const Stored*>(array.data);
  const int64_t count = count_elements(array.sizes);
  // Written so that a NaN is outside.
  const auto is_outside = [&](Stored stored) {
    const auto value = value_of(stored);
    return !(low <= value && value <= high);
  };
  const int64_t outside = std::count_if(values, values + count, is_outside);
  if (outside == 0) return;
  const Stored* const first = std::find_if(values, values + count, is_outside);
  refuse(spec.name, cat(outside, " of ", count, " values lie outside ", bounds.first.text(), "..",
                        bounds.second.text(), ", the first is ", value_of(*first), " at ",
                        position_text(first - values, array.sizes)));
}

void check_bounds(const TensorSpec& spec, const Array& array, const Sizes& sizes) {
  if (!spec.bounds || count_elements(array.sizes) == 0) return;
  const Bounds bounds = find_bounds(spec, sizes);
  const auto as_integer = [](auto value) { return static_cast<int64_t>(value); };
  const auto as_double = [](auto value) { return static_cast<double>(value); };
  switch (spec.type->code) {
    case ECR_UINT8:
    case ECR_BOOL:
      return check_values<uint8_t>(spec, bounds, array, as_integer);
    case ECR_INT8:
      return check_values<int8_t>(spec, bounds, array, as_integer);
    case ECR_INT16:
      return check_values<int16_t>(spec, bounds, array, as_integer);
    case ECR_INT32:
      return check_values<int32_t>(spec, bounds, array, as_integer);
    case ECR_INT64:
      return check_values<int64_t>(spec, bounds, array, as_integer);
    case ECR_FLOAT16:
      return check_values<uint16_t>(spec, bounds, array, from_half);
    case ECR_FLOAT32:
      return check_values<float>(spec, bounds, array, as_double);
    default:
      return check_values<double>(spec, bounds, array, as_double);
  }
}

bool overlap(const Array& a, const Array& b) {
  const uint8_t* const a_end = a.data + count_elements(a.sizes) * a.type->size;
  const uint8_t* const b_end = b.data + count_elements(b.sizes) * b.type->size;
  return a.data < b_end && b.data < a_end;
}

// The program changes a cache in place: a copy would take the changes away with itself.
void check_cache(const TensorSpec& spec, const Array& array, const std::vector<Array>& others) {
  constexpr const char* kWhy = "; the model changes it in place";
  if (array.owned.data() != nullptr) {
    refuse(spec.name, cat("isn't aligned in memory", kWhy));
  } else if (std::any_of(others.begin(), others.end(),
                         [&array](const Array& other) { return overlap(array, other); })) {
    refuse(spec.name, cat("overlaps another input", kWhy));
  }
}

}  // namespace

CheckedInputs check_inputs(const Manifest& manifest, const ecr_tensor* tensors, int64_t count) {
  if (count < 0 || (count > 0 && tensors == nullptr)) {
    fail(ECR_INPUT, cat("inputs: null pointer or negative count ", count));
  }
  ShapeChecker shapes(manifest);
  CheckedInputs result;
  const std::vector<const ecr_tensor*> slots = match_names(manifest, tensors, count);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == nullptr) continue;
    const TensorSpec& spec = manifest.inputs[i];
    Array array = convert(spec, *slots[i]);
    if (is_cache(manifest, spec)) check_cache(spec, array, result.arrays);
    shapes.check(spec, array.sizes);
    result.arrays.push_back(std::move(array));
  }
  shapes.check_sums();
  result.sizes = shapes.sizes();
  result.own_text = leaves_caches_out(manifest, slots);
  if (result.own_text && manifest.generation->context) {
    result.sizes[*manifest.generation->context] = context_rows(manifest);
  }
  for (size_t i = 0, given = 0; i < slots.size(); ++i) {
    if (slots[i] != nullptr) check_bounds(manifest.inputs[i], result.arrays[given++], result.sizes);
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] != nullptr) continue;
    const TensorSpec& spec = manifest.inputs[i];
    const auto place = result.arrays.begin() + static_cast<std::ptrdiff_t>(i);
    if (is_cache(manifest, spec)) {
      result.arrays.insert(place, own_cache(manifest, spec, context_rows(manifest)));
      continue;
    }
    Sizes sizes = shape_of(spec, result.sizes);
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] < 0) refuse(spec.name, "is missing, and nothing else has its size");
      const Dim& dim = spec.shape[d];
      // No bucket takes that; the dispatcher says so.
      if (dim.kind == Dim::Kind::kAxis && sizes[d] > manifest.axes[dim.axis].extent.hi) {
        return result;
      }
    }
    Array array = make_array(*spec.type, std::move(sizes));
    fill(&array, *spec.fallback);
    result.arrays.insert(place, std::move(array));
  }
  return result;
}

void check_rows(const Manifest& manifest, const CheckedInputs& inputs, int64_t computed) {
  if (!manifest.generation) return;
  const Generation& spec = *manifest.generation;
  const int64_t rows = spec.context ? inputs.sizes[*spec.context] : spec.max_context;
  const int64_t length = inputs.sizes[spec.length];
  for (size_t i = 0; i < manifest.inputs.size(); ++i) {
    const std::string& name = manifest.inputs[i].name;
    if (name != spec.position && name != spec.last) continue;
    const auto value = load<int64_t>(inputs.arrays[i].data);
    if (name == spec.position && (value < 0 || value > rows - computed)) {
      refuse(name, cat(value, " with ", length, " tokens (", computed,
                       " computed) doesn't lie within the ", rows, " rows of the caches"));
    }
    if (name == spec.last && (value < 0 || value >= length)) {
      refuse(name, cat(value, " isn't one of the ", length, " tokens, 0..", length - 1));
    }
  }
}

int64_t first_row(const Manifest& manifest, const CheckedInputs& inputs) {
  return load<int64_t>(
      inputs.arrays[manifest.find_input(manifest.generation->position).value()].data);
}

int64_t tokens_of(const Manifest& manifest, const CheckedInputs& inputs) {
  const Generation& spec = *manifest.generation;
  if (!spec.has_states) return inputs.sizes[spec.length];
  return load<int64_t>(inputs.arrays[manifest.find_input(spec.last).value()].data) + 1;
}

Array own_cache(const Manifest& manifest, const TensorSpec& spec, int64_t rows) {
  Sizes sizes(manifest.axes.size(), 0);
  if (manifest.generation->context) sizes[*manifest.generation->context] = rows;
  return {spec.type, shape_of(spec, sizes), nullptr, {}};
}

bool uses_own_text(const Manifest& manifest, const std::vector<Array>& inputs) {
  if (!manifest.generation) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_cache(manifest, manifest.inputs[i])) return inputs[i].data == nullptr;
  }
  return false;
}

int64_t input_bytes(const Manifest& manifest, const Sizes& sizes) {
  int64_t total = 0;
  for (const TensorSpec& spec : manifest.inputs) {
    // At most 512 inputs of at most 2^40 bytes: rule tensor-bytes.
    total += count_elements(shape_of(spec, sizes)) * spec.type->size;
  }
  return total;
}

std::vector<Array> make_inputs(const Manifest& manifest, const Sizes& sizes) {
  std::vector<Array> result;
  for (const TensorSpec& spec : manifest.inputs) {
    Number number{1};
    const std::optional<Bounds> bounds =
        spec.bounds ? std::optional<Bounds>(find_bounds(spec, sizes)) : std::nullopt;
    if (bounds && number.value < bounds->first.value) number = bounds->first;
    if (manifest.generation &&
        (spec.name == manifest.generation->position || spec.name == manifest.generation->last)) {
      number = {0};
    }
    if (bounds && number.value > bounds->second.value) number = bounds->second;
    result.push_back(make_array(*spec.type, shape_of(spec, sizes)));
    fill(&result.back(), number);
  }
  return result;
}

}  // namespace ecr
