// A stream: the outputs that are its state stay where the program wrote them, and are read there by
// the next run.
#include "call/stream.h"

#include <algorithm>

#include "base/text.h"

namespace ecr {
namespace {

Array make_start(const TensorSpec& spec, const std::vector<Number>& values) {
  Array array = make_array(*spec.type, shape_of(spec, {}));
  if (values.size() == 1) {
    fill(&array, values.front());
    return array;
  }
  uint8_t* place = array.owned.data();
  for (const Number& value : values) {
    encode(*spec.type, value, place);
    place += spec.type->size;
  }
  return array;
}

}  // namespace

Stream::Stream(std::shared_ptr<Model> model) : model_(std::move(model)) {
  const Manifest& manifest = model_->manifest();
  if (manifest.states.empty()) {
    fail(ECR_INPUT, manifest.name + ": the model has no state to keep",
         "call ecr_run, or name the state where the bundle is built: a factory's \"state\"");
  }
  for (const StateSpec& state : manifest.states) {
    start_.push_back(make_start(manifest.inputs[state.input], state.start));
  }
}

std::unique_lock<std::mutex> Stream::take() {
  std::unique_lock<std::mutex> turn(mutex_, std::try_to_lock);
  if (!turn) {
    fail(ECR_INPUT, "the stream is in use by another thread", "open a stream for each thread");
  }
  return turn;
}

void Stream::check_names(const ecr_tensor* inputs, int64_t count) const {
  const Manifest& manifest = model_->manifest();
  for (const ecr_tensor* item = inputs; item != inputs + count; ++item) {
    for (const StateSpec& state : manifest.states) {
      const std::string& name = manifest.inputs[state.input].name;
      if (item->name != nullptr && name == item->name) {
        fail(ECR_INPUT, cat("input ", name, ": is a state, which the stream keeps"),
             "leave it out, or run the model without a stream");
      }
    }
  }
}

std::unique_ptr<Outputs> Stream::run(const ecr_tensor* inputs, int64_t count) {
  const auto turn = take();
  // Which refuses them.
  if (count < 0 || (count > 0 && inputs == nullptr))
    return model_->run(inputs, count, std::nullopt);
  check_names(inputs, count);
  const Manifest& manifest = model_->manifest();
  std::vector<ecr_tensor> all(inputs, inputs + count);
  for (size_t i = 0; i < start_.size(); ++i) {
    const StateSpec& state = manifest.states[i];
    ecr_tensor tensor =
        last_ == nullptr ? view_of(start_[i]) : last_->views[manifest.states[i].output];
    tensor.name = manifest.inputs[state.input].name.c_str();
    all.push_back(tensor);
  }
  const std::shared_ptr<const Outputs> ran =
      model_->run(all.data(), static_cast<int64_t>(all.size()), std::nullopt);
  auto given = std::make_unique<Outputs>();
  for (size_t i = 0; i < ran->views.size(); ++i) {
    const bool is_state = std::any_of(manifest.states.begin(), manifest.states.end(),
                                      [i](const StateSpec& state) { return state.output == i; });
    if (!is_state) given->views.push_back(ran->views[i]);
  }
  given->count = static_cast<int64_t>(given->views.size());
  given->tensors = given->views.data();
  given->kept = ran;
  last_ = ran;
  return given;
}

void Stream::reset() {
  const auto turn = take();
  last_ = nullptr;
}

}  // namespace ecr
