// A stream of runs whose state goes from one to the next.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "call/model.h"

namespace ecr {

class Stream : Fixed {
 public:
  // At the start of the state. Throws Error where the model has none.
  explicit Stream(std::shared_ptr<Model> model);

  // Runs the model on its inputs without the state, and keeps the state that comes out; after an
  // error it is the one before. The outputs are those without the state. Throws Error.
  std::unique_ptr<Outputs> run(const ecr_tensor* inputs, int64_t count);
  // The state is what it was at first. Throws Error.
  void reset();

 private:
  // Streams are of one caller at a time: the order of two runs would be chance. Throws Error.
  std::unique_lock<std::mutex> take();
  void check_names(const ecr_tensor* inputs, int64_t count) const;

  const std::shared_ptr<Model> model_;
  std::vector<Array> start_;             // one for each of the manifest's states
  std::shared_ptr<const Outputs> last_;  // has the state; null: it is the start
  std::mutex mutex_;
};

}  // namespace ecr
