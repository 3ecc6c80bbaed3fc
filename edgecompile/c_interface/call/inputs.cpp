// A caller's tensors, held against the signature before native code sees them.
#include "call/inputs.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/text.h"

namespace ecr {
namespace {

constexpr size_t kMaxListed = 40;

class InputProblems {
 public:
  void add(const std::string& text) {
    if (count_++ < kMaxListed) lines_.push_back(text);
  }
  bool empty() const { return count_ == 0; }
  void raise_if_any() const {
    if (count_ == 0) return;
    if (count_ == 1) fail(ECR_INPUT, "input " + lines_[0]);
    std::string text = cat(count_, " problems with the inputs");
    for (const std::string& line : lines_) text += "\n  " + line;
    if (count_ > lines_.size()) text += cat("\n  ... and ", count_ - lines_.size(), " more");
    fail(ECR_INPUT, text);
  }

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

// A cache has none: what the program writes there would be lost.
bool has_default(const Manifest& manifest, const TensorSpec& spec) {
  return spec.fallback && !(manifest.generation && manifest.generation->is_cache(spec.name));
}

// Which tensor is which input; problems for the rest.
std::vector<const ecr_tensor*> match_names(const Manifest& manifest, const ecr_tensor* tensors,
                                           int64_t count, InputProblems* problems) {
  std::vector<const ecr_tensor*> found(manifest.inputs.size(), nullptr);
  for (int64_t i = 0; i < count; ++i) {
    if (tensors[i].name == nullptr) {
      problems->add(cat("number ", i, ": has no name"));
      continue;
    }
    const std::string name = tensors[i].name;
    const auto at = std::find_if(manifest.inputs.begin(), manifest.inputs.end(),
                                 [&name](const TensorSpec& spec) { return spec.name == name; });
    if (at == manifest.inputs.end()) {
      problems->add(shorten(name) + ": the model has no such input");
      continue;
    }
    const ecr_tensor*& slot = found[static_cast<size_t>(at - manifest.inputs.begin())];
    if (slot != nullptr) problems->add(name + ": is given twice");
    slot = &tensors[i];
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const TensorSpec& spec = manifest.inputs[i];
    if (found[i] == nullptr && !has_default(manifest, spec)) {
      problems->add(spec.name + ": is missing");
    }
  }
  return found;
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

int64_t load_integer(const ElementType& type, const uint8_t* at) {
  switch (type.size) {
    case 2:
      return load<int16_t>(at);
    case 4:
      return load<int32_t>(at);
    case 8:
      return load<int64_t>(at);
    default:
      return type.kind == Kind::kSigned ? int64_t{load<int8_t>(at)} : int64_t{*at};
  }
}

void store_integer(const ElementType& type, int64_t value, uint8_t* at) {
  encode(type, Number{true, value, 0}, at);
}

// The values as an aligned array of the input's type.
std::optional<Array> convert(const TensorSpec& spec, const ecr_tensor& tensor,
                             InputProblems* problems) {
  const ElementType* const type = find_type(tensor.dtype);
  if (type == nullptr || (type != spec.type && !widens(*type, *spec.type))) {
    problems->add(cat(spec.name, ": has dtype ",
                      type == nullptr ? cat("code ", tensor.dtype) : std::string(type->name),
                      ", must be ", spec.type->name));
    return std::nullopt;
  }
  if (tensor.ndim < 0 || tensor.ndim > ECR_MAX_DIMS) {
    problems->add(
        cat(spec.name, ": has ", tensor.ndim, " dimensions, must have ", spec.shape.size()));
    return std::nullopt;
  }
  Array array;
  array.type = spec.type;
  array.sizes.assign(tensor.sizes, tensor.sizes + tensor.ndim);
  int64_t nbytes = type->size;
  int64_t widened = spec.type->size;
  bool fits = true;
  for (const int64_t size : array.sizes) {
    fits = fits && size >= 0 && !__builtin_mul_overflow(nbytes, size, &nbytes) &&
           !__builtin_mul_overflow(widened, size, &widened);
  }
  if (!fits) {
    problems->add(cat(spec.name, ": has impossible sizes ", sizes_text(array.sizes)));
    return std::nullopt;
  }
  if (tensor.nbytes != nbytes || (tensor.data == nullptr && nbytes != 0)) {
    problems->add(cat(spec.name, ": has ", tensor.data == nullptr ? "no data, " : "", tensor.nbytes,
                      " bytes, but ", type->name, sizes_text(array.sizes), " has ", nbytes));
    return std::nullopt;
  }
  array.data = static_cast<const uint8_t*>(tensor.data);
  if (type->kind == Kind::kBoolean) {
    const uint8_t* const end = array.data + nbytes;
    const uint8_t* const bad = std::find_if(array.data, end, [](uint8_t byte) { return byte > 1; });
    if (bad != end) {
      problems->add(cat(spec.name, ": byte ", bad - array.data, " is ", int{*bad},
                        ", a bool must be 0 or 1"));
      return std::nullopt;
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
    store_integer(*spec.type, load_integer(*type, array.data + i * type->size),
                  own.owned.data() + i * spec.type->size);
  }
  return own;
}

// Sizes of axes as they are met; -1 before.
class ShapeChecker {
 public:
  ShapeChecker(const Manifest& manifest, InputProblems* problems)
      : manifest_(manifest),
        problems_(*problems),
        sizes_(manifest.axes.size(), -1),
        seen_(manifest.axes.size()) {}

  const Sizes& sizes() const { return sizes_; }

  bool check(const TensorSpec& spec, const Sizes& shape) {
    if (shape.size() != spec.shape.size()) {
      const auto dim_text = [this](const Dim& dim) {
        return dim.kind == Dim::Kind::kAxis ? manifest_.axes[dim.axis].name : cat(dim.size);
      };
      problems_.add(cat(spec.name, ": has shape ", sizes_text(shape), " with ", shape.size(),
                        " dimensions, must be [", join(spec.shape, dim_text), "] with ",
                        spec.shape.size()));
      return false;
    }
    bool good = true;
    for (size_t i = 0; i < shape.size(); ++i) {
      const Dim& dim = spec.shape[i];
      if (dim.kind == Dim::Kind::kFixed) {
        if (shape[i] == dim.size) continue;
        problems_.add(
            cat(spec.name, ": dimension ", i, " has size ", shape[i], ", must be ", dim.size));
        good = false;
      } else if (sizes_[dim.axis] < 0) {
        sizes_[dim.axis] = shape[i];
        seen_[dim.axis] = cat("dimension ", i, " of ", spec.name);
      } else if (sizes_[dim.axis] != shape[i]) {
        problems_.add(cat(spec.name, ": dimension ", i, " (", manifest_.axes[dim.axis].name,
                          ") has size ", shape[i], ", but ", seen_[dim.axis], " has ",
                          sizes_[dim.axis]));
        good = false;
      }
    }
    return good;
  }

 private:
  const Manifest& manifest_;
  InputProblems& problems_;
  Sizes sizes_;
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

// `Stored` is how a value lies in memory, `value_of` what it means.
template <class Stored, class ValueOf>
void check_values(const TensorSpec& spec, const Array& array, ValueOf value_of,
                  InputProblems* problems) {
  uint8_t ends[2][8] = {};
  // Bounds are rounded to the input's type as numpy does: 0.1f isn't above a bound of 0.1.
  encode(*spec.type, spec.bounds->first, ends[0]);
  encode(*spec.type, spec.bounds->second, ends[1]);
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
  problems->add(cat(spec.name, ": ", outside, " of ", count, " values lie outside ",
                    spec.bounds->first.text(), "..", spec.bounds->second.text(), ", the first is ",
                    value_of(*first), " at ", position_text(first - values, array.sizes)));
}

void check_bounds(const TensorSpec& spec, const Array& array, InputProblems* problems) {
  if (!spec.bounds || count_elements(array.sizes) == 0) return;
  const auto as_integer = [](auto value) { return static_cast<int64_t>(value); };
  const auto as_double = [](auto value) { return static_cast<double>(value); };
  switch (spec.type->code) {
    case ECR_UINT8:
    case ECR_BOOL:
      return check_values<uint8_t>(spec, array, as_integer, problems);
    case ECR_INT8:
      return check_values<int8_t>(spec, array, as_integer, problems);
    case ECR_INT16:
      return check_values<int16_t>(spec, array, as_integer, problems);
    case ECR_INT32:
      return check_values<int32_t>(spec, array, as_integer, problems);
    case ECR_INT64:
      return check_values<int64_t>(spec, array, as_integer, problems);
    case ECR_FLOAT16:
      return check_values<uint16_t>(spec, array, from_half, problems);
    case ECR_FLOAT32:
      return check_values<float>(spec, array, as_double, problems);
    default:
      return check_values<double>(spec, array, as_double, problems);
  }
}

bool overlap(const Array& a, const Array& b) {
  const uint8_t* const a_end = a.data + count_elements(a.sizes) * a.type->size;
  const uint8_t* const b_end = b.data + count_elements(b.sizes) * b.type->size;
  return a.data < b_end && b.data < a_end;
}

// The program changes a cache in place: a copy would take the changes away with itself.
void check_cache(const TensorSpec& spec, const Array& array, const std::vector<Array>& others,
                 InputProblems* problems) {
  constexpr const char* kWhy = "; the model changes it in place";
  if (array.owned.data() != nullptr) {
    problems->add(cat(spec.name, ": isn't aligned in memory", kWhy));
  } else if (std::any_of(others.begin(), others.end(),
                         [&array](const Array& other) { return overlap(array, other); })) {
    problems->add(cat(spec.name, ": overlaps another input", kWhy));
  }
}

}  // namespace

CheckedInputs check_inputs(const Manifest& manifest, const ecr_tensor* tensors, int64_t count) {
  if (count < 0 || (count > 0 && tensors == nullptr)) {
    fail(ECR_INPUT, cat("inputs: null pointer or negative count ", count));
  }
  InputProblems problems;
  ShapeChecker shapes(manifest, &problems);
  CheckedInputs result;
  const std::vector<const ecr_tensor*> found = match_names(manifest, tensors, count, &problems);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == nullptr) continue;
    const TensorSpec& spec = manifest.inputs[i];
    std::optional<Array> array = convert(spec, *found[i], &problems);
    if (array && manifest.generation && manifest.generation->is_cache(spec.name)) {
      check_cache(spec, *array, result.arrays, &problems);
    }
    if (!array || !shapes.check(spec, array->sizes)) continue;
    check_bounds(spec, *array, &problems);
    result.arrays.push_back(std::move(*array));
  }
  problems.raise_if_any();
  result.sizes = shapes.sizes();
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != nullptr) continue;
    const TensorSpec& spec = manifest.inputs[i];
    Sizes sizes;
    for (const Dim& dim : spec.shape) {
      sizes.push_back(dim.kind == Dim::Kind::kAxis ? result.sizes[dim.axis] : dim.size);
      if (sizes.back() < 0) problems.add(spec.name + ": is missing, and nothing else has its size");
      // No bucket takes that; the dispatcher says so.
      if (dim.kind == Dim::Kind::kAxis && sizes.back() > manifest.axes[dim.axis].extent.hi) {
        return result;
      }
    }
    problems.raise_if_any();
    Array array = make_array(*spec.type, std::move(sizes));
    fill(&array, *spec.fallback);
    result.arrays.insert(result.arrays.begin() + static_cast<std::ptrdiff_t>(i), std::move(array));
  }
  return result;
}

void check_rows(const Manifest& manifest, const CheckedInputs& inputs, int64_t computed) {
  if (!manifest.generation) return;
  const Generation& spec = *manifest.generation;
  InputProblems problems;
  const int64_t rows = inputs.sizes[spec.context];
  const int64_t length = inputs.sizes[spec.length];
  for (size_t i = 0; i < manifest.inputs.size(); ++i) {
    const std::string& name = manifest.inputs[i].name;
    if (name != spec.position && name != spec.last) continue;
    const auto value = load<int64_t>(inputs.arrays[i].data);
    if (name == spec.position && (value < 0 || value > rows - computed)) {
      problems.add(cat(name, ": ", value, " with ", length, " tokens (", computed,
                       " computed) doesn't lie within the ", rows, " rows of the caches"));
    }
    if (name == spec.last && (value < 0 || value >= length)) {
      problems.add(
          cat(name, ": ", value, " isn't one of the ", length, " tokens, 0..", length - 1));
    }
  }
  problems.raise_if_any();
}

int64_t input_bytes(const Manifest& manifest, const Sizes& sizes) {
  int64_t total = 0;
  for (const TensorSpec& spec : manifest.inputs) {
    // At most 64 inputs of at most 2^40 bytes: rule tensor-bytes.
    int64_t count = spec.type->size;
    for (const Dim& dim : spec.shape) {
      count *= dim.kind == Dim::Kind::kAxis ? sizes[dim.axis] : dim.size;
    }
    total += count;
  }
  return total;
}

std::vector<Array> make_inputs(const Manifest& manifest, const Sizes& sizes) {
  std::vector<Array> result;
  for (const TensorSpec& spec : manifest.inputs) {
    Sizes shape;
    for (const Dim& dim : spec.shape) {
      shape.push_back(dim.kind == Dim::Kind::kAxis ? sizes[dim.axis] : dim.size);
    }
    Number value{true, 1, 0};
    if (spec.bounds && value.value() < spec.bounds->first.value()) value = spec.bounds->first;
    if (manifest.generation &&
        (spec.name == manifest.generation->position || spec.name == manifest.generation->last)) {
      value = Number{true, 0, 0};
    }
    if (spec.bounds && value.value() > spec.bounds->second.value()) value = spec.bounds->second;
    Array array = make_array(*spec.type, std::move(shape));
    fill(&array, value);
    result.push_back(std::move(array));
  }
  return result;
}

}  // namespace ecr
