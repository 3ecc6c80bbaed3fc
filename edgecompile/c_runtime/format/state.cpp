// The manifest's "state": the outputs that are inputs of the next run of a stream.
#include <algorithm>

#include "base/text.h"
#include "format/schema.h"

namespace ecr {
namespace {

constexpr size_t kMaxEntries = 64;
constexpr size_t kMaxStart = 65536;

// The position of what an entry names, which no entry named before.
size_t find_tensor(const Field& entry, const std::vector<TensorSpec>& tensors,
                   const std::vector<size_t>& used) {
  const std::string& name = entry.string();
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorSpec& item) { return item.name == name; });
  if (found == tensors.end()) entry.refuse("state-tensors", "there is no " + quoted(name));
  const auto place = static_cast<size_t>(found - tensors.begin());
  if (std::find(used.begin(), used.end(), place) != used.end()) {
    entry.refuse("state-tensors", quoted(name) + " occurs twice");
  }
  return place;
}

bool is_same_fixed(const TensorSpec& output, const TensorSpec& input) {
  return output.type == input.type &&
         std::equal(output.shape.begin(), output.shape.end(), input.shape.begin(),
                    input.shape.end(), [](const Dim& a, const Dim& b) {
                      return a.kind == Dim::Kind::kFixed && b.kind == Dim::Kind::kFixed &&
                             a.size == b.size;
                    });
}

void check_start(const Field& place, const TensorSpec& input, const Number& value) {
  const bool is_within = !input.bounds || (input.bounds->first.value <= value.value &&
                                           value.value <= input.bounds->second.value);
  if (!holds(*input.type, value) || !is_within) {
    place.refuse("state-start",
                 cat(value.text(), " isn't a value of ", input.type->name, " within its bounds"));
  }
}

}  // namespace

void read_state(const Field& entries, Manifest* manifest) {
  std::vector<size_t> outputs;
  std::vector<size_t> inputs;
  const std::vector<Field> list = entries.list(1, kMaxEntries);
  if (manifest->generation) {
    entries.refuse("state-tensors", "a language model keeps its states as generation says");
  }
  for (const Field& entry : list) {
    const size_t output = find_tensor(entry.at("output"), manifest->outputs, outputs);
    const size_t input = find_tensor(entry.at("input"), manifest->inputs, inputs);
    outputs.push_back(output);
    inputs.push_back(input);
    const TensorSpec& spec = manifest->inputs[input];
    if (!is_same_fixed(manifest->outputs[output], spec)) {
      entry.refuse("state-tensors", quoted(spec.name) + " and " +
                                        quoted(manifest->outputs[output].name) +
                                        " aren't of one dtype and one shape of fixed sizes");
    }
    StateSpec state{output, input, {}};
    if (const std::optional<Field> start = entry.find("start")) {
      int64_t count = 1;
      for (const Dim& dim : spec.shape) count *= dim.size;
      for (const Field& item : start->list(1, kMaxStart)) {
        state.start.push_back(item.number());
        check_start(item, spec, state.start.back());
      }
      if (state.start.size() != 1 && static_cast<int64_t>(state.start.size()) != count) {
        start->refuse("state-start",
                      cat("has ", state.start.size(), " values, must have 1 or ", count));
      }
    } else {
      state.start.push_back({});
      check_start(entry, spec, state.start.back());
    }
    manifest->states.push_back(std::move(state));
  }
}

}  // namespace ecr
