// Whether a stub process of Triton's Python backend has stood still.
//
// A stub's health thread wakes every 300 ms and uses some CPU time then. The backend gives up a
// stub whose thread did not run for a second. Samples of the process's CPU time show whether that
// can be true, also after the process runs again: the text of an error, which a model may have made
// of a client's words, shows nothing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace triton {

// The clock of the day, which the backend uses for its second: it may jump.
using WallClock = std::chrono::system_clock;

class Liveness {
 public:
  explicit Liveness(pid_t process = 0) : process_(process) {}

  // Call it every `kSampleEvery`. A process counts as standing still between calls: the
  // caller's thread did not run either.
  void sample(WallClock::time_point now);

  // Whether the process is dead or stopped, or the backend may have given it up by now in a request
  // that began at `began`.
  bool may_be_given_up(WallClock::time_point began, WallClock::time_point now);

  // Whether a signal has stopped the process (SIGSTOP).
  bool is_stopped() const;

  static constexpr std::chrono::milliseconds kSampleEvery{100};

 private:
  bool is_dead_or_stopped() const;
  std::optional<uint64_t> cpu_time_ns() const;

  pid_t process_;
  uint64_t cpu_time_ns_ = 0;
  WallClock::time_point ran_at_ = WallClock::now();  // when the last sample differed
  WallClock::time_point stood_still_until_{};        // the end of the last long pause
};

}  // namespace triton
