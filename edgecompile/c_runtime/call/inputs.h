// Checks what ecr_run is given before native code sees it.
//
// Native code trusts its inputs: a wrong count or an index outside its table ends the process, and
// a wrong size gives wrong numbers. Everything that could do so is refused, all problems at once.
#pragma once

#include <vector>

#include "call/arrays.h"
#include "format/schema.h"

namespace ecr {

// Arrays in the manifest's order, aligned and of its types, and the size of every axis.
struct CheckedInputs {
  std::vector<Array> arrays;
  Sizes sizes;
  bool own_text = false;  // caches weren't given: the arrays have all their rows, and no data
};

// Arrays borrow the tensors' memory unless they had to be widened or aligned, which caches of a
// generative program may not have to. Whether the sizes are in a bucket isn't checked. Throws Error
// ECR_INPUT.
CheckedInputs check_inputs(const Manifest& manifest, const ecr_tensor* tensors, int64_t count);

// Checks which rows of its caches a generative program writes and reads, when the length is filled
// up to `computed`; others have none. Throws Error ECR_INPUT.
void check_rows(const Manifest& manifest, const CheckedInputs& inputs, int64_t computed);

// A generative program's position, the first row of its caches that it writes.
int64_t first_row(const Manifest& manifest, const CheckedInputs& inputs);

// Of such a run: by how many tokens the text grows. States are those behind its last one.
int64_t tokens_of(const Manifest& manifest, const CheckedInputs& inputs);

// A cache of so many rows of the model's own text, which whoever runs the program has.
Array own_cache(const Manifest& manifest, const TensorSpec& spec, int64_t rows);
// Whether the caches among the inputs of a program are those of the model's own text.
bool uses_own_text(const Manifest& manifest, const std::vector<Array>& inputs);

// Bytes of inputs of these sizes.
int64_t input_bytes(const Manifest& manifest, const Sizes& sizes);

// Valid inputs of these sizes: ones where the bounds allow it, else the nearest bound; a generative
// program begins at row 0.
std::vector<Array> make_inputs(const Manifest& manifest, const Sizes& sizes);

}  // namespace ecr
