// The programs of the variant that was opened, as a model uses them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "call/arrays.h"
#include "call/program.h"

namespace ecr {

// The outputs of one run and their memory.
struct Outputs : ecr_outputs {
  std::vector<ecr_tensor> views;  // what `tensors` points to
  std::vector<Array> arrays;
  std::vector<std::string> names;
  std::unique_ptr<ProgramOutputs> native;  // whose memory arrays may borrow
  std::shared_ptr<const Outputs> kept;     // whose memory views borrow, of a stream's run
};

// One program for each bucket. Every method may be called from several threads; whoever destroys it
// sees to it that no run is under way.
class Programs {
 public:
  virtual ~Programs() = default;
  // Runs a bucket's program, which is loaded where it isn't yet, on what the dispatcher made of the
  // inputs. Caches without data are those of the model's own text, which has begun. `shapes` are
  // those of the outputs, -1 for all there is; `result` gets their arrays, where it isn't null.
  // Throws Error.
  virtual void run(size_t bucket, const std::vector<Array>& inputs,
                   const std::vector<Sizes>& shapes, Outputs* result) = 0;
  // Begins the model's own text again: its caches are zeros. Not while a run uses them. Throws
  // Error.
  virtual void begin_text() = 0;
  // Whether a bucket's first run of many rows loads a library, which warming up does.
  virtual bool warms_largest(size_t) const { return false; }
  // The buckets whose programs are loaded.
  virtual std::vector<size_t> loaded() = 0;
  // Writes the keys of Python's Model.info that are theirs.
  virtual void describe(JsonWriter* out) = 0;
};

}  // namespace ecr
