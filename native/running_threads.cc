#include "running_threads.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

namespace triton {

namespace {

using Clock = std::chrono::steady_clock;
using ThreadIds = std::set<std::string>;

// Other threads may be busy for other reasons, such as an event loop's.
constexpr std::chrono::seconds kLongestWait{1};
constexpr std::chrono::milliseconds kPause{1};

bool sleeps(const std::filesystem::path& thread) {
  std::ifstream file(thread / "stat");
  std::string fields;
  std::getline(file, fields, '\0');
  const size_t name_end = fields.rfind(") ");  // the name before it may contain anything
  return name_end != std::string::npos && fields.compare(name_end + 2, 1, "S") == 0;
}

// The other threads if all of them sleep. A thread whose state cannot be read counts as running.
std::optional<ThreadIds> sleeping_threads() noexcept {
  try {
    const std::string own = std::to_string(syscall(SYS_gettid));
    ThreadIds ids;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      const std::string id = entry.path().filename();
      if (id == own) continue;
      if (!sleeps(entry.path())) return std::nullopt;
      ids.insert(id);
    }
    return ids;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

void wait_for_running_threads() noexcept {
  const Clock::time_point deadline = Clock::now() + kLongestWait;
  std::optional<ThreadIds> before = sleeping_threads();
  while (Clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
    std::optional<ThreadIds> now = sleeping_threads();
    // A thread that ends may wake one that was read as sleeping, so one reading is not enough.
    if (now && now == before) return;
    before = std::move(now);
  }
}

}  // namespace triton
