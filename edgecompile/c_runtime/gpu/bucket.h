// One bucket on a GPU: its program, its memory and, with a graph, its captured run.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <vector>

#include "call/programs.h"
#include "gpu/copier.h"
#include "gpu/library.h"

namespace ecr {

// What the buckets of a model share. One run is under way at a time, as all use the scratch memory.
struct SharedStream {
  bool records = true;  // graphs can hold the runs, whose outputs' shapes are known before
  const Driver* driver = nullptr;
  Device device;
  Owned<void*> stream;
  const std::unique_ptr<Copier> copier = std::make_unique<Copier>();
  int64_t scratch_bytes = 0;
  Owned<Address> scratch;
};

// Gets an output of a run by its number, with its sizes and its row-major values, which stay only
// during the call.
using Take = std::function<void(size_t output, const Sizes& sizes, const uint8_t* data)>;

// The sizes of a bucket's axes at their upper ends.
Sizes largest_sizes(const Bucket& bucket);

// Ready to run. Not from two threads at once; the GPU is current on the one that calls.
class GpuBucket {
 public:
  // Loads the kernels, and allocates memory for the bucket's largest shapes. `most_graphs`: of so
  // many shapes that come often the runs become graphs. `text`: the caches are there, and aren't
  // given, and a run of the largest shapes, where those are the bucket's only ones, is a graph from
  // its second time on; where it is null, a generative program's caches are inputs that come back
  // changed.
  // Everything that is given stays as long as this. Throws GpuError.
  GpuBucket(const SharedStream& shared, GpuProgram* program, const Manifest& manifest,
            const Bucket& bucket, size_t most_graphs, const CacheMemory* text = nullptr);

  // Runs once; caches that aren't a text's are written back to the inputs' memory. Throws GpuError,
  // and what `take` throws.
  void run(const std::vector<Array>& inputs, const Take& take);
  // Runs once as usual and once recorded; from now on runs replay that, of these shapes only.
  void capture(const std::vector<Array>& inputs);
  int64_t nbytes() const { return staging_->nbytes(); }  // of inputs and outputs
  size_t graphs() const { return kept_.size() + (plan_.graph.get() != nullptr ? 1 : 0); }

 private:
  // Runs of certain shapes: what they are, and where in the staging memory everything lies: large
  // inputs, which are sent while they are copied and so no part of a graph, others, caches, which
  // are inputs that come back changed, outputs.
  struct Plan {
    std::vector<Sizes> inputs, outputs;
    std::vector<int64_t> sources, targets;
    int64_t ahead = 0, sent = 0;   // up to where large inputs lie, and all
    int64_t fetched = 0, end = 0;  // from where, and all of it
    Owned<void*> graph;            // none: they are queued
  };
  Plan arrange(const std::vector<Sizes>& inputs);
  void check_outputs(const Sizes& largest) const;
  bool is_cache(size_t input) const;
  bool is_there(size_t input) const { return text_ != nullptr && is_cache(input); }
  const Plan& find_plan(const std::vector<Sizes>& inputs);
  void queue(const Plan& plan);
  void take_inputs(const std::vector<Array>& inputs, const Plan& plan);
  void run_on_gpu(const Plan& plan, const std::vector<Array>& inputs);
  // Once more without cuBLASLt where that has failed: what fails in a capture spoils it. Throws
  // GpuError.
  Owned<void*> record(const Plan& plan);
  Owned<void*> record_once(const Plan& plan);
  void keep_often(const std::vector<Sizes>& inputs);

  const SharedStream& shared_;
  GpuProgram& program_;
  const Manifest& manifest_;
  const CacheMemory* text_;
  size_t most_graphs_;
  int graph_after_;  // of runs of the largest shapes
  std::vector<Sizes> largest_;
  std::unique_ptr<const Staging> staging_;
  std::vector<Sizes> results_;  // the shapes of the last run's outputs; none: they are the plan's
  Plan plan_;                   // what the program is set to; without inputs: nothing
  std::list<Plan> kept_;  // of shapes that came often, the one that was used last at the front
  std::map<std::vector<Sizes>, int> seen_;  // how often others came
};

}  // namespace ecr
