// Sums of many terms, as exact as torch's: the accumulators of Inductor's kernels
// (backends/inductor/compat/sums.py).
#pragma once

namespace ec {

// A sum of numbers, or of vectors lane by lane. Terms are added up in blocks; what is lost where a
// block joins the blocks before it is kept and added at the end. So its error is that of a block,
// however many there are.
template <class T>
class Sum {
 public:
  Sum() : Sum(T(0)) {}
  Sum(T first) : block_(first), blocks_(T(0)), lost_(T(0)) {}

  T total() const {
    // Of an infinite sum the loss is NaN.
    if constexpr (std::is_floating_point_v<T>) {
      return blocks_ + (lost_ == lost_ ? block_ + lost_ : block_);
    } else {
      return blocks_ + (block_ + T::blendv(T(0), lost_, lost_ == lost_));
    }
  }

  friend inline Sum operator+(Sum sum, const T& term) {
    sum.block_ = sum.block_ + term;
    sum.count();
    return sum;
  }

  // Of what threads summed up.
  friend inline Sum operator+(Sum a, const Sum& b) {
    a.join(a.block_);
    a.join(b.blocks_);
    a.join(b.block_);
    a.lost_ = a.lost_ + b.lost_;
    a.block_ = T(0);
    a.terms_ = 0;
    return a;
  }

  // The first lanes of a vector alone.
  friend inline Sum sum_masked_reduce(Sum sum, const T& term, int64_t lanes) {
    sum.block_ = T::set(sum.block_, sum.block_ + term, lanes);
    sum.count();
    return sum;
  }

 private:
  static constexpr int kBlock = 16;

  void count() {
    if (++terms_ < kBlock) return;
    join(block_);
    block_ = T(0);
    terms_ = 0;
  }

  void join(const T& block) {
    const T sum = blocks_ + block;
    const T added = sum - blocks_;
    lost_ = lost_ + ((blocks_ - (sum - added)) + (block - added));
    blocks_ = sum;
  }

  T block_, blocks_, lost_;
  int terms_ = 0;
};

}  // namespace ec

#if INDUCTOR_USE_VECTOR_TYPES()
namespace at::vec {

template <class T, int N, class Add, class Vector>
inline T vec_reduce_all(const Add& add, const ec::Sum<Vector>& sum) {
  return vec_reduce_all(add, VectorizedN<T, N>(sum.total()));
}

}  // namespace at::vec
#endif
