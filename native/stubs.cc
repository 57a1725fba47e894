#include "stubs.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

namespace triton {

namespace nb = nanobind;

namespace {

// The backend's messages about an unhealthy stub: with the instance's name between the first two,
// or without a name. runtime/triton_interface.py has the same texts.
constexpr std::string_view kBeforeName = "Stub process '";
constexpr std::string_view kAfterName = "' is not healthy.";
constexpr std::string_view kFull = "Stub process is not healthy.";
constexpr std::string_view kLocked = "Failed to obtain the health mutex.";

// The core puts `in ensemble 'NAME', ` before the error of a step, for each ensemble around it.
constexpr std::string_view kBeforeEnsemble = "in ensemble '";
constexpr std::string_view kAfterEnsemble = "', ";

// An error that quotes another one with its traceback is shorter; a longer one may quote a body.
constexpr size_t kLongestQuote = 64 * 1024;

std::string_view without_ensembles(std::string_view message) {
  while (message.starts_with(kBeforeEnsemble)) {
    const size_t name_end = message.find(kAfterEnsemble, kBeforeEnsemble.size());
    if (name_end == std::string_view::npos) break;
    message.remove_prefix(name_end + kAfterEnsemble.size());
  }
  return message;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Kills a child that runs. Triton reaps its stubs, so that the number may be another process's by
// now: only a child of this process is meant.
bool kill_child(pid_t process) {
  siginfo_t ended = {};
  if (process <= 0 ||
      waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT) != 0)
    return false;
  return ended.si_pid == 0 && kill(process, SIGKILL) == 0;
}

// Since the boot, as the kernel counts a process's start; no change of the clock affects it.
uint64_t now_ticks() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const auto per_s = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return static_cast<uint64_t>(now.tv_sec) * per_s +
         static_cast<uint64_t>(now.tv_nsec) * per_s / 1'000'000'000;
}

// When a process began; nothing if it is gone.
std::optional<uint64_t> start_ticks(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string skipped;
  std::getline(file, skipped, '\0');
  const size_t name_end = skipped.rfind(')');  // the name before it may contain anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(skipped.substr(name_end + 1));
  for (int field = 3; field < 22; ++field) fields >> skipped;
  uint64_t ticks = 0;
  if (!(fields >> ticks)) return std::nullopt;
  return ticks;
}

// A stub is unhealthy after a second at the earliest: one of the same tick is its replacement.
bool began_before(pid_t process, uint64_t ticks) {
  const std::optional<uint64_t> start = start_ticks(process);
  return !start || *start < ticks;
}

}  // namespace

bool Stubs::may_mix_up(const std::string& model, uint64_t epoch) noexcept {
  const std::lock_guard lock(mutex_);
  return std::any_of(stubs_.begin(), stubs_.end(), [&](const auto& each) {
    const Stub& stub = each.second;
    return (stub.unhealthy || epoch < stub.mixed_up_before) && contains(stub.models, model);
  });
}

void Stubs::mark_unhealthy(Stub& stub) {
  if (stub.unhealthy) return;
  stub.was_stopped = stub.liveness.is_stopped();
  stub.lived = kill_child(stub.process);
  stub.marked_at = now_ticks();
  stub.unhealthy = true;
  unhealthy_.fetch_add(1, std::memory_order_release);
}

bool Stubs::runs_in_stub(const std::string& model) const {
  return std::any_of(stubs_.begin(), stubs_.end(),
                     [&](const auto& each) { return contains(each.second.models, model); });
}

// The model runs in the stub, or is an ensemble with such a model. A model that runs in another
// stub may have called this one's (BLS): its error then contains the error of the call.
bool Stubs::is_named(const Stub& stub, const std::string& model, std::string_view message) const {
  if (contains(stub.models, model)) {
    const std::string_view said = without_ensembles(message);
    if (said == stub.unhealthy_message || said == kFull || said == kLocked) return true;
  }
  return message.size() <= kLongestQuote &&
         message.find(stub.unhealthy_message) != std::string_view::npos && runs_in_stub(model);
}

bool Stubs::on_error(const FailedRequest& request, std::string_view message) noexcept {
  const std::lock_guard lock(mutex_);
  bool believed = false;
  for (auto& [_, stub] : stubs_) {
    if (request.epoch < stub.mixed_up_before || !is_named(stub, request.model, message)) continue;
    if (!stub.unhealthy && !stub.liveness.may_be_given_up(request.began, WallClock::now()))
      continue;
    mark_unhealthy(stub);
    believed = true;
  }
  return believed;
}

Stubs::~Stubs() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_sampler_.notify_one();
  if (sampler_.joinable()) sampler_.join();
}

void Stubs::sample_all() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const WallClock::time_point now = WallClock::now();
    for (auto& [_, stub] : stubs_) stub.liveness.sample(now);
    if (stubs_.empty())
      wake_sampler_.wait(lock);
    else
      wake_sampler_.wait_for(lock, Liveness::kSampleEvery);
  }
}

void Stubs::set_process(const std::string& instance, Stub& stub, pid_t process) {
  stub.unhealthy_message = std::string(kBeforeName).append(instance).append(kAfterName);
  stub.liveness = Liveness(process);
  stub.process = process;
}

void Stubs::set(const Running& running) {
  const std::lock_guard lock(mutex_);
  for (auto each = stubs_.begin(); each != stubs_.end();) {
    const bool stays = each->second.unhealthy || running.count(each->first) != 0;
    each = stays ? std::next(each) : stubs_.erase(each);
  }
  for (const auto& [instance, found] : running) {
    const auto& [process, models] = found;
    Stub& stub = stubs_[instance];
    if (stub.process == process) {
      if (!stub.unhealthy) stub.models = models;
      continue;
    }
    if (stub.unhealthy && !stub.was_stopped && began_before(process, stub.marked_at)) {
      if (kill_child(process)) stub.lived = true;
    } else if (std::exchange(stub.unhealthy, false)) {
      stub.mixed_up_before = epoch_.fetch_add(1, std::memory_order_relaxed) + 1;
      unhealthy_.fetch_sub(1, std::memory_order_release);
    } else {
      stub.models = models;
    }
    set_process(instance, stub, process);
  }
  if (!stubs_.empty() && !sampler_.joinable()) sampler_ = std::thread(&Stubs::sample_all, this);
  wake_sampler_.notify_one();
}

nb::dict Stubs::unhealthy() const {
  nb::dict instances;
  if (unhealthy_.load(std::memory_order_acquire) == 0) return instances;
  const std::lock_guard lock(mutex_);
  for (const auto& [instance, stub] : stubs_)
    if (stub.unhealthy) instances[instance.c_str()] = stub.lived;
  return instances;
}

}  // namespace triton
