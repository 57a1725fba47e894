// Triton's reports of a request's way through the core: when it was queued, computed, ended.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "triton_api.h"

namespace triton {

namespace nb = nanobind;

// One time of one trace. An ensemble's request has a trace of its own for each model it passes.
struct TraceActivity {
  uint64_t trace_id;   // unique in this core
  uint64_t parent_id;  // 0: the request's own trace
  std::string model;
  int64_t version;
  int32_t activity;       // as Triton numbers them
  uint64_t monotonic_ns;  // CLOCK_MONOTONIC
};

// A tensor of a traced request. One in a GPU's memory, or beyond the limits, has no data.
struct TraceTensor {
  uint64_t trace_id;
  int32_t activity;  // 7 queue input, 8 backend input, 9 backend output
  std::string name;
  DataType type;
  std::vector<int64_t> shape;
  std::string data;
};

// Filled on Triton's threads, read under the GIL.
struct TraceLog {
  std::mutex mutex;
  std::vector<TraceActivity> activities;
  std::vector<TraceTensor> tensors;
  size_t tensor_bytes = 0;                      // their data
  std::map<uint64_t, std::string> request_ids;  // by trace; without empty ones
  bool released = false;                        // the request's own trace has ended
};

// One request's trace, for `infer`. Used under the GIL, for one request only.
class RequestTrace {
 public:
  // `context` is JSON; backends read it (`request.trace().get_context()` in Python models).
  // `level` has Triton's bits of what to report.
  explicit RequestTrace(std::string context, int32_t level)
      : context_(std::move(context)), level_(level), log_(std::make_shared<TraceLog>()) {}

  // The trace to send a request with; nullptr where this core was built without tracing.
  InferenceTrace* begin();
  // The core has refused the request: it may have released the trace, or have left it here.
  void refused(InferenceTrace* trace);
  bool ended() const;
  nb::list activities() const;
  nb::list tensors() const;
  std::map<uint64_t, std::string> request_ids() const;

 private:
  std::string context_;
  int32_t level_;
  std::shared_ptr<TraceLog> log_;
  void* number_ = nullptr;  // by which Triton's threads find the log
};

void bind_trace(nb::module_& module);

}  // namespace triton
