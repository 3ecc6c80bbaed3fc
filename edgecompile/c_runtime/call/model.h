// A bundle opened for running.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "bundle/host.h"
#include "call/dispatch.h"
#include "call/inputs.h"
#include "call/programs.h"

namespace ecr {

class Model : Fixed {
 public:
  // Throws Error.
  Model(const std::string& path, const ecr_options& options);

  // With the program of `bucket`, or of the one that fits. Throws Error.
  std::unique_ptr<Outputs> run(const ecr_tensor* inputs, int64_t count,
                               std::optional<int32_t> bucket);
  const Manifest& manifest() const { return folder_.manifest(); }
  std::string describe();
  ecr_signature signature();
  // Waits for calls under way; later ones are refused. A second call does nothing.
  void close();

 private:
  // What a call holds while it is under way. Throws Error ECR_CLOSED.
  std::shared_lock<std::shared_mutex> enter();
  // Without the backends and variants that can't be used.
  void open(const ecr_options& options, const Strings& without);
  // Runs every bucket once at its hint, and where many rows take a library of their own, at its
  // largest sizes, too. Throws Error.
  void warm_up();
  void warm_up(size_t bucket, const Sizes& sizes);
  // Of a run over the model's own text: that its rows follow those that are there. Throws Error.
  void begin_run(const CheckedInputs& inputs);
  const Tolerance& tolerance() const;

  BundleFolder folder_;
  Host host_;
  std::vector<Refusal> refused_;
  std::string fallback_;  // why the CPU runs instead of a GPU; "": it doesn't
  const Variant* variant_ = nullptr;
  std::unique_ptr<Programs> programs_;  // none: it is closed
  std::optional<Dispatcher> dispatcher_;
  std::vector<ecr_spec> input_specs_;
  std::vector<ecr_spec> output_specs_;

  std::mutex text_mutex_;  // held by a run over the model's own text
  int64_t text_rows_ = 0;  // of it that were written

  std::shared_mutex calls_;  // shared by those under way
};

}  // namespace ecr
