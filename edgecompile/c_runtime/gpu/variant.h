// Whether this machine's GPU can run a variant of Triton kernels, and how a mode pads its buckets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle/host.h"
#include "gpu/driver.h"

namespace ecr {

constexpr const char* kPlanned = "planned";
constexpr const char* kDefault = "default";
constexpr const char* kReduceOverhead = "reduce-overhead";

// Why it can't, or none; waits until CUDA is ready. Throws GpuError where CUDA fails otherwise.
std::optional<GpuError> find_refusal(const Variant& variant);

// Why the GPU can't run some variants, by their names, where it can run others. Where it can't run
// any, that is left to who opens one: its error says more. Throws GpuError.
Strings judge_variants(const Manifest& manifest, const Host& host);

// The buckets, each of more than one size padded along all of its axes; of a generative model along
// the length alone. `verified`: the builder has shown that padding changes nothing. Throws Error
// ECR_MODE with every reason against it.
std::vector<Bucket> pad_everything(const Manifest& manifest, bool verified);

}  // namespace ecr
