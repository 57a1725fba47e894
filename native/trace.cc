#include "trace.h"

#include <nanobind/stl/string.h>

#include "error.h"

namespace triton {

namespace {

void on_activity(InferenceTrace* trace, TraceActivityKind activity, uint64_t timestamp_ns,
                 void* userp) {
  TraceActivity told{0, 0, {}, 0, static_cast<int32_t>(activity), timestamp_ns};
  const char* model = nullptr;
  ignore(server_api.InferenceTraceId(trace, &told.trace_id));
  ignore(server_api.InferenceTraceParentId(trace, &told.parent_id));
  ignore(server_api.InferenceTraceModelName(trace, &model));
  ignore(server_api.InferenceTraceModelVersion(trace, &told.version));
  if (model != nullptr) told.model = model;
  auto* log = static_cast<TraceLog*>(userp);
  const std::lock_guard lock(log->mutex);
  log->activities.push_back(std::move(told));
}

// The traces of an ensemble's steps end before the ensemble's own, which is the last to tell
// anything.
void on_released(InferenceTrace* trace, void* userp) {
  uint64_t parent_id = 0;
  ignore(server_api.InferenceTraceParentId(trace, &parent_id));
  ignore(server_api.InferenceTraceDelete(trace));
  if (parent_id != 0) return;
  std::shared_ptr<TraceLog> dropped;  // outlives the lock, which is the log's own
  auto* log = static_cast<TraceLog*>(userp);
  const std::lock_guard lock(log->mutex);
  log->released = true;
  dropped = std::move(log->kept_by_triton);
}

}  // namespace

InferenceTrace* RequestTrace::begin() {
  InferenceTrace* trace = nullptr;
  Error* error = server_api.InferenceTraceNew(&trace, kTraceTimestamps, 0, on_activity, on_released,
                                              log_.get());
  if (error != nullptr && server_api.ErrorCode(error) == Code::kUnsupported) {
    ignore(error);
    return nullptr;
  }
  check(error);
  log_->kept_by_triton = log_;
  if (!context_.empty()) ignore(server_api.InferenceTraceSetContext(trace, context_.c_str()));
  return trace;
}

void RequestTrace::refused(InferenceTrace* trace) {
  std::shared_ptr<TraceLog> kept;
  {
    const std::lock_guard lock(log_->mutex);
    kept = std::move(log_->kept_by_triton);
  }
  if (kept != nullptr) ignore(server_api.InferenceTraceDelete(trace));
}

bool RequestTrace::ended() const {
  const std::lock_guard lock(log_->mutex);
  return log_->released;
}

nb::list RequestTrace::activities() const {
  std::vector<TraceActivity> told;
  {
    const std::lock_guard lock(log_->mutex);
    told = log_->activities;
  }
  nb::list listed;
  for (const TraceActivity& each : told) {
    listed.append(nb::make_tuple(each.trace_id, each.parent_id, nb::str(each.model.c_str()),
                                 each.version, each.activity, each.monotonic_ns));
  }
  return listed;
}

void bind_trace(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<RequestTrace>(module, "RequestTrace",
                           "When a request was queued, computed and ended in the core.")
      .def(nb::init<std::string>(), "context"_a)
      .def_prop_ro("ended", &RequestTrace::ended, "The core tells nothing more of the request.")
      .def("activities", &RequestTrace::activities,
           nb::sig("def activities(self) -> list[tuple[int, int, str, int, int, int]]"),
           "(trace, parent or 0, model, version, activity, nanoseconds of the monotonic clock)");
}

}  // namespace triton
