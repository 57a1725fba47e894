#include "stubs.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <sstream>
#include <utility>

namespace triton {

namespace nb = nanobind;

namespace {

// What the backend says of an unhealthy stub. Both leave the answer in the queue.
constexpr std::string_view kNamed = "Stub process '";
constexpr std::string_view kUnhealthy = "is not healthy";
constexpr std::string_view kLocked = "Failed to obtain the health mutex";

// The instance that the message names; empty where it names none.
std::string_view named_instance(std::string_view message) {
  const size_t found = message.find(kNamed);
  if (found == std::string_view::npos) return {};
  message.remove_prefix(found + kNamed.size());
  return message.substr(0, message.find('\''));
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

void Stubs::mark_unhealthy(Stub& stub, const std::string& model) {
  if (!stub.unhealthy) {
    stub.lived = stub.process == 0 || kill_child(stub.process);
    stub.marked_at = now_ticks();
    stub.unhealthy = true;
    unhealthy_.fetch_add(1, std::memory_order_release);
  }
  if (!contains(stub.models, model)) stub.models.push_back(model);  // it calls the stub's model
}

void Stubs::on_error(const std::string& model, uint64_t epoch, std::string_view message) noexcept {
  if (message.find(kUnhealthy) == std::string_view::npos &&
      message.find(kLocked) == std::string_view::npos)
    return;
  try {
    const std::lock_guard lock(mutex_);
    const std::string_view instance = named_instance(message);
    if (!instance.empty()) {
      Stub& stub = stubs_[std::string(instance)];
      if (epoch >= stub.mixed_up_before) mark_unhealthy(stub, model);
      return;
    }
    for (auto& [_, stub] : stubs_)
      if (epoch >= stub.mixed_up_before && contains(stub.models, model))
        mark_unhealthy(stub, model);
  } catch (const std::bad_alloc&) {
    // Without memory for a name. The stub itself is marked and killed before memory is needed.
  }
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
    if (stub.unhealthy && began_before(process, stub.marked_at)) {
      if (kill_child(process)) stub.lived = true;
    } else if (std::exchange(stub.unhealthy, false)) {
      stub.mixed_up_before = epoch_.fetch_add(1, std::memory_order_relaxed) + 1;
      unhealthy_.fetch_sub(1, std::memory_order_release);
    } else {
      stub.models = models;
    }
    stub.process = process;
  }
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
