// Copies of large inputs into pinned memory, in pieces and by a few threads.
#include "gpu/copier.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>

#include "bundle/host.h"

namespace ecr {
namespace {

// More threads hardly copy faster, and one in four leaves the other CPUs to the process.
constexpr int kMostThreads = 4, kCpusForEach = 4;
// What a thread takes at a time, and the least that the caller sends: each call of the driver takes
// some microseconds, and the last one delays the run.
constexpr int64_t kPiece = 128 << 10, kPart = 512 << 10;
constexpr int kSpins = 1000;

// Waits for a thread that is in the middle of a piece, and may have lost its CPU.
template <class Done>
void wait_until(const Done& done) {
  for (int i = 0; !done(); ++i) {
    if (i > kSpins) sched_yield();
  }
}

}  // namespace

struct Copier::Team {
  const pid_t process = getpid();
  pthread_t helpers[kMostThreads - 1];
  int count = 0;  // of helpers
  std::mutex mutex;
  std::condition_variable begun;
  uint64_t number = 0;  // of the last copy
  bool open = false;    // helpers may join it
  bool ending = false;

  // The copy.
  uint8_t* to = nullptr;
  const uint8_t* from = nullptr;
  int64_t nbytes = 0, pieces = 0, most_pieces = 0;
  std::unique_ptr<std::atomic<uint64_t>[]> whole;  // by piece: the last copy that has copied it
  std::atomic<int64_t> next{0};                    // piece
  std::atomic<int> inside{0};                      // helpers

  explicit Team(int threads) {
    sigset_t all, old;  // Signals are the business of the program's own threads.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (count < threads - 1 && pthread_create(&helpers[count], nullptr, help, this) == 0) {
      pthread_setname_np(helpers[count++], "edgecompile");
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }

  static void* help(void* self) {
    Team& team = *static_cast<Team*>(self);
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(team.mutex);
    for (;;) {
      team.begun.wait(lock, [&] { return team.ending || (team.open && team.number != seen); });
      if (team.ending) return nullptr;
      seen = team.number;
      team.inside.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      while (team.take_piece(seen)) {
      }
      team.inside.fetch_sub(1, std::memory_order_release);
      lock.lock();
    }
  }

  bool take_piece(uint64_t copy) {
    const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
    if (piece >= pieces) return false;
    const int64_t start = piece * kPiece;
    std::memcpy(to + start, from + start, static_cast<size_t>(std::min(kPiece, nbytes - start)));
    whole[static_cast<size_t>(piece)].store(copy, std::memory_order_release);
    return true;
  }

  // Returns the number of the copy.
  uint64_t begin(uint8_t* target, const uint8_t* source, int64_t size) {
    const int64_t count_now = (size + kPiece - 1) / kPiece;
    if (count_now > most_pieces) {
      whole.reset(new std::atomic<uint64_t>[static_cast<size_t>(count_now)]());
      most_pieces = count_now;
    }
    to = target, from = source, nbytes = size, pieces = count_now;
    next.store(0, std::memory_order_relaxed);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      open = true;
      ++number;
    }
    begun.notify_all();
    return number;
  }

  // Returns when no helper uses the memory.
  void end() {
    next.store(pieces, std::memory_order_relaxed);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      open = false;
    }
    wait_until([this] { return inside.load(std::memory_order_acquire) == 0; });
  }
};

Copier::~Copier() {
  // The threads of a fork are its parent's, which may have held the mutex.
  if (team_ == nullptr || team_->process != getpid()) return;
  {
    const std::lock_guard<std::mutex> lock(team_->mutex);
    team_->ending = true;
  }
  team_->begun.notify_all();
  for (int i = 0; i < team_->count; ++i) pthread_join(team_->helpers[i], nullptr);
  delete team_;
}

void Copier::copy(uint8_t* to, const uint8_t* from, int64_t nbytes, const Ready& ready) {
  if (team_ == nullptr) {
    const int allowed = std::min(count_cpus() / kCpusForEach, kMostThreads);
    team_ = new Team(threads_ != 0 ? std::min(threads_, kMostThreads) : allowed);
  }
  Team& team = *team_;
  struct End {
    Team& team;
    ~End() { team.end(); }
  };
  const uint64_t copy = team.begin(to, from, nbytes);
  const End end{team};
  int64_t sent = 0, whole = 0;
  for (int64_t piece = 0; piece < team.pieces;) {
    const bool copied = team.take_piece(copy);
    const auto is_whole = [&] {
      return team.whole[static_cast<size_t>(piece)].load(std::memory_order_acquire) == copy;
    };
    if (!copied) wait_until(is_whole);
    while (piece < team.pieces && is_whole()) ++piece;
    whole = std::min(piece * kPiece, nbytes);
    if (whole - sent < kPart && piece < team.pieces) continue;
    ready(sent, whole);
    sent = whole;
  }
}

}  // namespace ecr
