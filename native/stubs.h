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
// serves the instance.
//
// The backend says so only in the text of an error, and a model may make the same text of a
// client's words. It is believed only about a stub that is known and that the request can have
// used, and only if `Liveness` shows that the stub is dead, stopped, or has stood still.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "liveness.h"

namespace triton {

class Stubs {
 public:
  Stubs() = default;
  Stubs(const Stubs&) = delete;
  Stubs& operator=(const Stubs&) = delete;
  ~Stubs();

  // How many stubs were replaced after they had become unhealthy. To keep with each request: those
  // before it began do not concern it.
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }

  // Whether a response to a request of `model`, begun in `epoch`, may belong to another request.
  bool mixes_up(const std::string& model, uint64_t epoch) noexcept {
    return (unhealthy_.load(std::memory_order_acquire) != 0 || epoch != this->epoch()) &&
           may_mix_up(model, epoch);
  }

  struct FailedRequest {
    const std::string& model;
    uint64_t epoch;
    WallClock::time_point began;
  };

  // Called with each error, on the thread of the backend that reports it. Returns whether it says
  // that a stub is unhealthy, and is believed.
  bool on_error(const FailedRequest& request, std::string_view message) noexcept;

  // By instance: its process, and the models that use it.
  using Running = std::unordered_map<std::string, std::pair<pid_t, std::vector<std::string>>>;

  // Sets the running stubs. An unhealthy instance is used again once it has a process that began
  // after it became unhealthy. An older one is killed: its process was not known, and may mix up
  // responses. If the known process was stopped by a signal, an older one is kept: a reload was
  // starting it.
  void set(const Running& running);

  // {instance: whether its process lived} of those that are unhealthy and have no other so far.
  nanobind::dict unhealthy() const;

 private:
  struct Stub {
    pid_t process = 0;
    Liveness liveness;
    std::string unhealthy_message;
    std::vector<std::string> models;  // that use it
    uint64_t mixed_up_before = 0;     // earlier requests may receive wrong responses
    uint64_t marked_at = 0;           // when it became unhealthy, in clock ticks since the boot
    bool unhealthy = false;
    bool lived = false;        // when it became unhealthy
    bool was_stopped = false;  // the same; then the backend meant this process and no other
  };

  bool may_mix_up(const std::string& model, uint64_t epoch) noexcept;
  bool is_named(const Stub& stub, const std::string& model, std::string_view message) const;
  bool runs_in_stub(const std::string& model) const;
  void mark_unhealthy(Stub& stub);
  void set_process(const std::string& instance, Stub& stub, pid_t process);
  void sample_all();

  mutable std::mutex mutex_;
  std::atomic<uint64_t> epoch_{0};
  std::atomic<uint32_t> unhealthy_{0};
  std::unordered_map<std::string, Stub> stubs_;  // by instance
  std::thread sampler_;                          // runs from the first stub on
  std::condition_variable wake_sampler_;
  bool ending_ = false;
};

}  // namespace triton
