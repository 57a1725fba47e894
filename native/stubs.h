// Detects stub processes of Triton's Python backend that may mix up responses.
//
// Each stub sets a health flag, which the backend checks once a second. If the flag is not set, the
// backend fails the request, but keeps the stub and reads the next response from the same queue.
// The late response to the failed request is still in that queue, so each later request receives
// the response to the request before it (python_backend, ReceiveMessageFromStub in
// stub_launcher.cc; reproduced with core 2.51). A stub that was merely slow, because the machine
// was busy or paused, then sends one client the text of another.
//
// Therefore a stub that the backend calls unhealthy is killed at once, before the backend's thread
// sends it another request. Responses of all models that use it are discarded until another process
// serves the instance. The messages are those of triton_interface.py.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace triton {

class Stubs {
 public:
  // How many stubs were replaced after they had become unhealthy. To keep with each request: those
  // before it began do not concern it.
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }

  // Whether a response to a request of `model`, begun in `epoch`, may belong to another request.
  bool mixes_up(const std::string& model, uint64_t epoch) noexcept {
    return (unhealthy_.load(std::memory_order_acquire) != 0 || epoch != this->epoch()) &&
           may_mix_up(model, epoch);
  }

  // Called with each error, on the thread of the backend that reports it.
  void on_error(const std::string& model, uint64_t epoch, std::string_view message) noexcept;

  // By instance: its process, and the models that use it.
  using Running = std::unordered_map<std::string, std::pair<pid_t, std::vector<std::string>>>;

  // What runs now. An unhealthy instance is used again once it has a process that began after it
  // became unhealthy. An older one is killed: its process was not known, and may mix up responses.
  void set(const Running& running);

  // {instance: whether its process lived} of those that are unhealthy and have no other so far.
  nanobind::dict unhealthy() const;

 private:
  struct Stub {
    pid_t process = 0;                // 0: not known
    std::vector<std::string> models;  // that use it
    uint64_t mixed_up_before = 0;     // earlier requests may receive wrong responses
    uint64_t marked_at = 0;           // when it became unhealthy, in clock ticks since the boot
    bool unhealthy = false;
    bool lived = false;  // when it became unhealthy
  };

  bool may_mix_up(const std::string& model, uint64_t epoch) noexcept;
  void mark_unhealthy(Stub& stub, const std::string& model);

  mutable std::mutex mutex_;
  std::atomic<uint64_t> epoch_{0};
  std::atomic<uint32_t> unhealthy_{0};
  std::unordered_map<std::string, Stub> stubs_;  // by instance
};

}  // namespace triton
