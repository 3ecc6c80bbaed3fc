// A bundle opened for running.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bundle/host.h"
#include "call/dispatch.h"
#include "call/inputs.h"
#include "call/program.h"

namespace ecr {

// The outputs of one run and their memory.
struct Outputs : ecr_outputs {
  std::vector<ecr_tensor> views;  // what `tensors` points to
  std::vector<Array> arrays;
  std::vector<std::string> names;
  std::unique_ptr<ProgramOutputs> native;
};

class Model {
 public:
  // Throws Error.
  Model(const std::string& path, const ecr_options& options);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // With the program of `bucket`, or of the one that fits. Throws Error.
  std::unique_ptr<Outputs> run(const ecr_tensor* inputs, int64_t count,
                               std::optional<int32_t> bucket);
  std::string describe();
  ecr_signature signature();
  // Waits for calls under way; later ones are refused. A second call does nothing.
  void close();

 private:
  // Counts a call that is under way. Throws Error ECR_CLOSED.
  class Call {
   public:
    explicit Call(Model* model);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Model& model_;
  };

  const Program& program(size_t bucket);
  void warm_up();

  BundleFolder folder_;
  Host host_;
  std::vector<Refusal> refused_;
  const Variant* variant_ = nullptr;
  int32_t concurrency_ = 1;
  const RuntimeLibrary* runtime_ = nullptr;
  std::shared_ptr<Weights> weights_;
  Dispatcher dispatcher_;
  std::vector<ecr_spec> input_specs_;
  std::vector<ecr_spec> output_specs_;

  // Programs are made under the mutex, and found without it: loading one doesn't hold up runs of
  // another.
  std::mutex load_mutex_;
  std::vector<std::unique_ptr<const Program>> programs_;
  std::unique_ptr<std::atomic<const Program*>[]> ready_;

  std::mutex state_mutex_;
  std::condition_variable idle_;
  int64_t running_ = 0;
  bool closed_ = false;
};

}  // namespace ecr
