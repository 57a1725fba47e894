#include "liveness.h"

#include <sys/wait.h>
#include <time.h>

namespace triton {

namespace {

using std::chrono::milliseconds;

// The backend's second may begin up to 300 ms before the health thread would run again.
constexpr milliseconds kStandsStill{700};
// From the end of a pause to the backend's error, which its own late thread reports.
constexpr milliseconds kReportedWithin{1000};
// No request fails sooner: the backend waits for a second. The clocks are read at different times.
constexpr milliseconds kYoungestRequest{900};

}  // namespace

void Liveness::sample(WallClock::time_point now) {
  const std::optional<uint64_t> used = cpu_time_ns();
  if (used && *used == cpu_time_ns_) return;
  if (used && now - ran_at_ >= kStandsStill) stood_still_until_ = now;
  cpu_time_ns_ = used.value_or(0);
  ran_at_ = now;
}

bool Liveness::may_be_given_up(WallClock::time_point began, WallClock::time_point now) {
  if (is_dead_or_stopped()) return true;
  sample(now);
  if (now - began < kYoungestRequest) return false;
  const auto since = now - stood_still_until_;
  return now - ran_at_ >= kStandsStill || (since >= since.zero() && since < kReportedWithin);
}

// Triton reaps its stubs, so that the number may be another process's by now: only a child of this
// process counts.
bool Liveness::is_dead_or_stopped() const {
  if (process_ <= 0) return true;
  siginfo_t state = {};
  const int options = WEXITED | WSTOPPED | WNOHANG | WNOWAIT;
  return waitid(P_PID, static_cast<id_t>(process_), &state, options) != 0 || state.si_pid != 0;
}

bool Liveness::is_stopped() const {
  siginfo_t state = {};
  const int options = WSTOPPED | WNOHANG | WNOWAIT;
  return process_ > 0 && waitid(P_PID, static_cast<id_t>(process_), &state, options) == 0 &&
         state.si_pid != 0;
}

// Nothing if the process is gone or the kernel does not allow to read its clock.
std::optional<uint64_t> Liveness::cpu_time_ns() const {
  clockid_t clock;
  timespec used;
  if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &used) != 0)
    return std::nullopt;
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
}

}  // namespace triton
