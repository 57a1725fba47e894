#include "trace.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <unordered_map>

#include "error.h"
#include "tensor.h"

namespace triton {

namespace {

// The logs of requests whose own trace has not ended, by the numbers that Triton has for them. Not
// by pointers: a nested request may outlive its parent, and its trace reports under the same
// number.
class OpenLogs {
 public:
  void* open(std::shared_ptr<TraceLog> log) {
    const std::lock_guard lock(mutex_);
    void* number = reinterpret_cast<void*>(++last_);
    logs_.emplace(number, std::move(log));
    return number;
  }
  std::shared_ptr<TraceLog> find(void* number) {
    const std::lock_guard lock(mutex_);
    const auto found = logs_.find(number);
    return found == logs_.end() ? nullptr : found->second;
  }
  // The log, where it was open.
  std::shared_ptr<TraceLog> close(void* number) {
    const std::lock_guard lock(mutex_);
    const auto node = logs_.extract(number);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<TraceLog>> logs_;
  uintptr_t last_ = 0;
};

// Never destroyed: threads of the core may outlive the module's other globals.
OpenLogs& open_logs() {
  static auto* logs = new OpenLogs();
  return *logs;
}

void note_activity(InferenceTrace* trace, TraceActivityKind activity, uint64_t timestamp_ns,
                   void* userp) {
  const std::shared_ptr<TraceLog> log = open_logs().find(userp);
  if (log == nullptr) return;
  TraceActivity entry{0, 0, {}, 0, static_cast<int32_t>(activity), timestamp_ns};
  const char* model = nullptr;
  ignore(server_api.InferenceTraceId(trace, &entry.trace_id));
  ignore(server_api.InferenceTraceParentId(trace, &entry.parent_id));
  ignore(server_api.InferenceTraceModelName(trace, &model));
  ignore(server_api.InferenceTraceModelVersion(trace, &entry.version));
  if (model != nullptr) entry.model = model;
  const char* request_id = nullptr;
  if (static_cast<int32_t>(activity) == kRequestStart) {
    ignore(server_api.InferenceTraceRequestId(trace, &request_id));
  }
  const std::lock_guard lock(log->mutex);
  if (log->released) return;
  if (request_id != nullptr && *request_id != 0) log->request_ids[entry.trace_id] = request_id;
  log->activities.push_back(std::move(entry));
}

// No exception may cross into the core, which calls this.
void on_activity(InferenceTrace* trace, TraceActivityKind activity, uint64_t timestamp_ns,
                 void* userp) noexcept {
  try {
    note_activity(trace, activity, timestamp_ns, userp);
  } catch (const std::bad_alloc&) {
    // The request continues; its trace lacks this activity.
  }
}

constexpr size_t kMostTensors = 4096;                  // per request
constexpr size_t kMostTensorBytes = size_t{1} << 18;   // per tensor
constexpr size_t kMostTracedBytes = size_t{16} << 20;  // per request

void note_tensor(InferenceTrace* trace, TraceTensor tensor, const void* base, size_t byte_size,
                 void* userp) {
  const std::shared_ptr<TraceLog> log = open_logs().find(userp);
  if (log == nullptr) return;
  ignore(server_api.InferenceTraceId(trace, &tensor.trace_id));
  const std::lock_guard lock(log->mutex);
  if (log->released || log->tensors.size() >= kMostTensors) return;
  const bool fits =
      byte_size <= kMostTensorBytes && byte_size <= kMostTracedBytes - log->tensor_bytes;
  if (base != nullptr && fits) {
    tensor.data.assign(static_cast<const char*>(base), byte_size);
    log->tensor_bytes += byte_size;
  }
  log->tensors.push_back(std::move(tensor));
}

void on_tensor(InferenceTrace* trace, TraceActivityKind activity, const char* name,
               DataType datatype, const void* base, size_t byte_size, const int64_t* shape,
               uint64_t dims, MemoryType memory, int64_t, void* userp) noexcept {
  try {
    TraceTensor tensor{0, static_cast<int32_t>(activity), name, datatype, {}, {}};
    if (dims > 0) tensor.shape.assign(shape, shape + dims);
    const bool readable = memory != MemoryType::kGpu;
    note_tensor(trace, std::move(tensor), readable ? base : nullptr, byte_size, userp);
  } catch (const std::bad_alloc&) {
    // The request continues; its trace lacks this tensor.
  }
}

// The traces of an ensemble's steps end before the ensemble's own.
void on_released(InferenceTrace* trace, void* userp) {
  uint64_t parent_id = 0;
  ignore(server_api.InferenceTraceParentId(trace, &parent_id));
  ignore(server_api.InferenceTraceDelete(trace));
  if (parent_id != 0) return;
  const std::shared_ptr<TraceLog> log = open_logs().close(userp);
  if (log == nullptr) return;
  const std::lock_guard lock(log->mutex);
  log->released = true;
}

}  // namespace

InferenceTrace* RequestTrace::begin() {
  InferenceTrace* trace = nullptr;
  number_ = open_logs().open(log_);
  Error* error = server_api.InferenceTraceTensorNew(&trace, level_, 0, on_activity, on_tensor,
                                                    on_released, number_);
  if (error != nullptr) {
    open_logs().close(number_);
    if (server_api.ErrorCode(error) != Code::kUnsupported) check(error);
    ignore(error);
    return nullptr;
  }
  if (!context_.empty()) ignore(server_api.InferenceTraceSetContext(trace, context_.c_str()));
  return trace;
}

void RequestTrace::refused(InferenceTrace* trace) {
  if (open_logs().close(number_) != nullptr) ignore(server_api.InferenceTraceDelete(trace));
  const std::lock_guard lock(log_->mutex);
  log_->released = true;
}

bool RequestTrace::ended() const {
  const std::lock_guard lock(log_->mutex);
  return log_->released;
}

nb::list RequestTrace::activities() const {
  std::vector<TraceActivity> activities;
  {
    const std::lock_guard lock(log_->mutex);
    activities = log_->activities;
  }
  nb::list listed;
  for (const TraceActivity& each : activities) {
    listed.append(nb::make_tuple(each.trace_id, each.parent_id, nb::str(each.model.c_str()),
                                 each.version, each.activity, each.monotonic_ns));
  }
  return listed;
}

nb::list RequestTrace::tensors() const {
  std::vector<TraceTensor> tensors;
  {
    const std::lock_guard lock(log_->mutex);
    tensors = log_->tensors;
  }
  nb::list listed;
  for (const TraceTensor& each : tensors) {
    nb::list elements;
    try {
      elements = all_elements(each.type, each.data.data(), each.data.size());
    } catch (const std::invalid_argument&) {
      // A model may write anything.
    }
    listed.append(nb::make_tuple(each.trace_id, each.activity, nb::str(each.name.c_str()),
                                 std::string(info(each.type).name), shape_tuple(each.shape),
                                 elements));
  }
  return listed;
}

std::map<uint64_t, std::string> RequestTrace::request_ids() const {
  const std::lock_guard lock(log_->mutex);
  return log_->request_ids;
}

void bind_trace(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<RequestTrace>(module, "RequestTrace",
                           "When a request was queued, computed and ended in the core.")
      .def(nb::init<std::string, int32_t>(), "context"_a, "level"_a = kTraceTimestamps)
      .def_prop_ro("ended", &RequestTrace::ended,
                   "The core reports nothing more about the request.")
      .def("activities", &RequestTrace::activities,
           nb::sig("def activities(self) -> list[tuple[int, int, str, int, int, int]]"),
           "(trace, parent or 0, model, version, activity, nanoseconds of the monotonic clock)")
      .def("tensors", &RequestTrace::tensors,
           nb::sig("def tensors(self) -> list[tuple[int, int, str, str, tuple[int, ...], "
                   "list[typing.Any]]]"),
           "(trace, activity, name, datatype, shape, elements); no elements if they are too many")
      .def("request_ids", &RequestTrace::request_ids,
           nb::sig("def request_ids(self) -> dict[int, str]"),
           "The ids of requests that have one, by trace.");
}

}  // namespace triton
