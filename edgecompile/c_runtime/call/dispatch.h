// Chooses the bucket for the sizes of a run, and pads inputs for it.
// The rule: FORMAT.md, "Choosing a bucket".
#pragma once

#include <vector>

#include "call/arrays.h"
#include "format/schema.h"

namespace ecr {

class Dispatcher {
 public:
  // `buckets` are the manifest's, or those of a mode that pads more of them.
  Dispatcher(const Manifest& manifest, std::vector<Bucket> buckets);

  const Bucket& bucket(size_t index) const { return buckets_[index]; }

  // The bucket that serves these sizes (one per axis). Throws Error ECR_OUTSIDE with the ranges.
  size_t choose(const Sizes& sizes) const;
  // Throws Error ECR_OUTSIDE unless the bucket takes these sizes.
  void check(size_t bucket, const Sizes& sizes) const;
  // Inputs as the program of the bucket takes them: filled up at the end with their pad value along
  // every padded axis. Those that fit borrow the memory of `arrays`.
  std::vector<Array> pad(const Bucket& bucket, const std::vector<Array>& arrays,
                         const Sizes& sizes) const;
  // The sizes that a bucket is tuned for; a padded axis runs at its upper end.
  Sizes hint_sizes(size_t bucket) const;

 private:
  std::string sizes_text(const Sizes& sizes) const;
  std::string hint(const Sizes& sizes) const;

  const Manifest& manifest_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> order_;
};

}  // namespace ecr
