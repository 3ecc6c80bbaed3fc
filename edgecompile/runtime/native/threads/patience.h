// How long a worker that found nothing to do keeps looking before it sleeps.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ec {

class Patience {
 public:
  // The gaps between the parallel parts of one model run are shorter; sleeping and waking would
  // cost several microseconds at each.
  static constexpr int64_t kSpinNs = 50'000;
  // The same where one run follows another, with the caller's own work between them: after so many
  // longer gaps in a row that ended within this time. Waking takes up to 150 microseconds where the
  // CPU is a virtual one, which its host gave to others meanwhile.
  static constexpr int64_t kPatientSpinNs = 500'000;
  static constexpr int kCalmGaps = 8;
  // A longer gap may mean that another process wants the CPUs, and a worker that couldn't look for
  // so long lost its own: who spins then pays for it with its share of the time.
  static constexpr int64_t kLostCoreNs = 100'000;

  int64_t spin_ns() const { return calm_ < kCalmGaps ? kSpinNs : kPatientSpinNs; }

  // Whether there is any patience to lose.
  bool tried() const { return calm_ > 0; }

  // A gap is over that lasted `idle` ns; `longest_look` passed from one look at the clock to the
  // next.
  void note_gap(int64_t idle, int64_t longest_look) {
    if (idle >= kPatientSpinNs || longest_look > kLostCoreNs) {
      calm_ = 0;
    } else if (idle > kSpinNs) {
      calm_ = std::min(calm_ + 1, kCalmGaps);
    }
  }

 private:
  int calm_ = 0;
};

}  // namespace ec
