#include "inference.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "error.h"
#include "json_text.h"

namespace triton {

RelayCounts relay_counts;

// Inputs of this size and above are lent to Triton instead of copied: below it the copy costs less
// than keeping the Python object (64 KiB copy in about 4 us).
constexpr size_t kBorrowBytes = 64 * 1024;

// Maximum text per frame. Clients may limit the length of a line.
constexpr size_t kFrameBytes = 16 * 1024;

// Text that is gathered for a slow client; more goes to the writer's buffer, which has a limit.
constexpr size_t kHeldBytes = 64 * 1024;

constexpr const char* kMixedUp =
    "a stub process that the model uses did not respond to Triton in time; the response may belong "
    "to another request and was discarded";

InFlight::InFlight(std::shared_ptr<ResponseQueue> response_queue, std::string model_name)
    : queue(std::move(response_queue)), model(std::move(model_name)), epoch(queue->stubs.epoch()) {}

const OutputRequest* InFlight::output(std::string_view name) const {
  for (const OutputRequest& output : outputs) {
    if (output.name == name) return &output;
  }
  return nullptr;
}

struct StreamAccess {
  static InFlight& in_flight(ResponseStream& stream) { return *stream.in_flight_; }
};

const Tensor* ReceivedResponse::find(std::string_view name) const {
  for (const Tensor& output : outputs) {
    if (output.name == name) return &output;
  }
  return nullptr;
}

// ---- from Triton's threads, without the GIL ----

namespace {

// The memory that the request gives for an output; null if it gives none or it is too small.
Error* place(InFlight& in_flight, const OutputRequest& output, size_t byte_size, void** buffer) {
  const auto room = static_cast<size_t>(output.memory.len);
  if (byte_size <= room) {
    *buffer = output.memory.buf;
    return nullptr;
  }
  try {
    std::string message = "output '" + output.name + "' has " + std::to_string(byte_size) +
                          " bytes, but the request gives it " + std::to_string(room) +
                          " bytes of shared memory";
    Error* error = server_api.ErrorNew(Code::kInvalidArg, message.c_str());
    const std::lock_guard lock(in_flight.queue->mutex);
    in_flight.too_large = std::move(message);
    return error;
  } catch (const std::bad_alloc&) {
    return server_api.ErrorNew(Code::kUnavailable, "no memory for an output");
  }
}

Error* allocate(ResponseAllocator*, const char* tensor, size_t byte_size, MemoryType, int64_t,
                void* userp, void** buffer, void** buffer_userp, MemoryType* actual,
                int64_t* actual_id) {
  *buffer = nullptr;
  *buffer_userp = nullptr;
  *actual = MemoryType::kCpu;
  *actual_id = 0;
  if (byte_size == 0) return nullptr;
  if (userp != nullptr) {
    auto& in_flight = *static_cast<InFlight*>(userp);
    const OutputRequest* output = in_flight.output(tensor);
    if (output != nullptr && output->placed) return place(in_flight, *output, byte_size, buffer);
  }
  try {
    Buffer* allocated = Buffer::allocate(byte_size);
    *buffer = allocated->data();
    *buffer_userp = allocated;
  } catch (const std::bad_alloc&) {
    return server_api.ErrorNew(Code::kUnavailable, "no memory for an output");
  }
  return nullptr;
}

Error* release_buffer(ResponseAllocator*, void*, void* buffer_userp, size_t, MemoryType, int64_t) {
  if (buffer_userp != nullptr) static_cast<Buffer*>(buffer_userp)->release();
  return nullptr;
}

Tensor read_output(InferenceResponse* response, uint32_t index, const InFlight& in_flight) {
  const char* name;
  Tensor tensor;
  const int64_t* shape;
  uint64_t dimensions;
  const void* base;
  MemoryType memory;
  int64_t memory_id;
  void* userp = nullptr;
  check(server_api.InferenceResponseOutput(response, index, &name, &tensor.type, &shape,
                                           &dimensions, &base, &tensor.byte_size, &memory,
                                           &memory_id, &userp));
  tensor.name = name;
  tensor.shape.assign(shape, shape + dimensions);
  tensor.buffer = BufferReference(static_cast<Buffer*>(userp));
  const OutputRequest* output = in_flight.output(tensor.name);
  tensor.placed = output != nullptr && output->placed;
  return tensor;
}

// The label of each class; empty for one without a label.
std::vector<std::string> read_labels(InferenceResponse* response, uint32_t index,
                                     const Tensor& tensor, size_t first_dimension) {
  size_t classes = 1;
  for (size_t place = first_dimension; place < tensor.shape.size(); ++place)
    classes *= static_cast<size_t>(tensor.shape[place]);
  std::vector<std::string> labels(std::min(classes, tensor.byte_size));
  for (size_t each = 0; each < labels.size(); ++each) {
    const char* label = nullptr;
    check(server_api.InferenceResponseOutputClassificationLabel(response, index, each, &label));
    if (label != nullptr) labels[each] = label;
  }
  return labels;
}

ParameterValue read_parameter_value(ParameterType type, const void* value) {
  switch (type) {
    case ParameterType::kInt:
      return *static_cast<const int64_t*>(value);
    case ParameterType::kBool:
      return *static_cast<const bool*>(value);
    case ParameterType::kDouble:
      return *static_cast<const double*>(value);
    default:
      return std::string(static_cast<const char*>(value));
  }
}

void read_response(InferenceResponse* response, ReceivedResponse& received,
                   const InFlight& in_flight) {
  check(server_api.InferenceResponseError(response));
  uint32_t count = 0;
  check(server_api.InferenceResponseOutputCount(response, &count));
  received.outputs.reserve(count);
  for (uint32_t index = 0; index < count; ++index) {
    received.outputs.push_back(read_output(response, index, in_flight));
    const Tensor& tensor = received.outputs.back();
    const OutputRequest* output = in_flight.output(tensor.name);
    if (output != nullptr && output->labels)
      received.labels.emplace_back(tensor.name,
                                   read_labels(response, index, tensor, *output->labels));
  }
  check(server_api.InferenceResponseParameterCount(response, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* name;
    ParameterType type;
    const void* value;
    check(server_api.InferenceResponseParameter(response, index, &name, &type, &value));
    received.parameters.emplace_back(name, read_parameter_value(type, value));
  }
}

bool is_over(const InFlight& in_flight) { return in_flight.finished && in_flight.released; }

// Objects that an event may make superfluous: taken under the queue's lock, dropped after it.
//
// Triton keeps the InFlight until the last response has arrived and the request is released, in
// either order. The request itself must outlive its release: a decoupled model that answers from
// its own threads releases it at once, and asks while it answers whether it was cancelled. Only a
// cancel through the request reaches it then.
class Leftovers {
 public:
  Leftovers() = default;
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers() {
    if (request_ == nullptr) return;
    ignore(server_api.InferenceRequestDelete(request_));
    live.requests.fetch_sub(1, std::memory_order_relaxed);
  }
  void take(InFlight& in_flight) {
    if (in_flight.released && (in_flight.finished || in_flight.cancelled))
      request_ = std::exchange(in_flight.request, nullptr);
    if (is_over(in_flight)) in_flight_ = std::move(in_flight.kept_by_triton);
  }

 private:
  InferenceRequest* request_ = nullptr;
  std::shared_ptr<InFlight> in_flight_;
};

bool succeeded(Error* error) {
  const bool success = error == nullptr;
  ignore(error);
  return success;
}

struct OutputView {
  std::string_view name;
  DataType type;
  const int64_t* shape;
  uint64_t dimensions;
  const void* base;
  size_t byte_size;
};

bool view_output(InferenceResponse* response, uint32_t index, OutputView& view) {
  const char* name;
  MemoryType memory;
  int64_t memory_id;
  void* userp = nullptr;
  if (!succeeded(server_api.InferenceResponseOutput(response, index, &name, &view.type, &view.shape,
                                                    &view.dimensions, &view.base, &view.byte_size,
                                                    &memory, &memory_id, &userp)))
    return false;
  view.name = name;
  return true;
}

bool read_string(const OutputView& view, TextResponse& read) {
  if (view.type != DataType::kBytes || view.byte_size < 4) return false;
  uint32_t length;
  std::memcpy(&length, view.base, 4);
  if (length != view.byte_size - 4) return false;
  read.output = view.name;
  read.text = std::string_view(static_cast<const char*>(view.base) + 4, length);
  return is_utf8(read.text);
}

template <typename Value>
bool read_rows(const OutputView& view, DataType type, LogprobRows& rows, const Value*& values) {
  if (view.type != type || view.dimensions != 2 || view.shape[0] < 1 || view.shape[1] < 1)
    return false;
  rows.positions = static_cast<size_t>(view.shape[0]);
  rows.width = static_cast<size_t>(view.shape[1]);
  values = static_cast<const Value*>(view.base);
  const size_t count = view.byte_size / sizeof(Value);  // a product of the shape could overflow
  return view.byte_size % sizeof(Value) == 0 && count % rows.width == 0 &&
         count / rows.width == rows.positions;
}

// Reads an output that may accompany a text.
bool read_beside(const OutputView& view, TextResponse& read) {
  if (view.name == "token_ids" && view.type == DataType::kInt32) {
    read.tokens = view.byte_size / sizeof(int32_t);
    return true;
  }
  LogprobRows rows;
  if (view.name == "logprob_tokens") {
    if (!read_rows(view, DataType::kInt32, rows, rows.token_ids)) return false;
    rows.values = read.logprobs.values;
  } else if (view.name == "logprob_values") {
    if (!read_rows(view, DataType::kFp64, rows, rows.values)) return false;
    rows.token_ids = read.logprobs.token_ids;
  } else {
    return false;
  }
  const LogprobRows& before = read.logprobs;
  if (before.positions != 0 && (before.positions != rows.positions || before.width != rows.width))
    return false;
  read.logprobs = rows;
  return true;
}

// Whether the response holds a text, the first output, and nothing that is not of its tokens.
bool read_text(InferenceResponse* response, TextResponse& read) {
  if (!succeeded(server_api.InferenceResponseError(response))) return false;
  uint32_t count = 0;
  if (!succeeded(server_api.InferenceResponseParameterCount(response, &count)) || count != 0)
    return false;
  if (!succeeded(server_api.InferenceResponseOutputCount(response, &count)) || count == 0)
    return false;
  OutputView view;
  if (!view_output(response, 0, view) || !read_string(view, read)) return false;
  for (uint32_t index = 1; index < count; ++index) {
    if (!view_output(response, index, view) || !read_beside(view, read)) return false;
  }
  return (read.logprobs.token_ids == nullptr) == (read.logprobs.values == nullptr);
}

// Whether the response has gone the short way.
bool relayed(const std::shared_ptr<InFlight>& in_flight, InferenceResponse* response) noexcept {
  TextResponse read;
  try {
    return read_text(response, read) && in_flight->queue->push_text(in_flight, read);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// nullptr if there is no memory for it.
std::unique_ptr<ReceivedResponse> received_response(InFlight& in_flight,
                                                    InferenceResponse* response, bool final,
                                                    bool mixed_up) noexcept {
  try {
    auto received = std::make_unique<ReceivedResponse>();
    received->final = final;
    try {
      if (response != nullptr) read_response(response, *received, in_flight);
    } catch (const TritonError& error) {
      const Stubs::FailedRequest request{in_flight.model, in_flight.epoch, in_flight.began};
      const bool unhealthy = in_flight.queue->stubs.on_error(request, error.what());
      received->error.emplace(unhealthy ? Code::kUnavailable : error.code(), error.what());
      received->outputs.clear();
    }
    {
      const std::lock_guard lock(in_flight.queue->mutex);
      if (!in_flight.too_large.empty()) {  // clearer than what the backend makes of it
        received->error.emplace(Code::kInvalidArg, std::exchange(in_flight.too_large, {}));
        received->outputs.clear();
      }
    }
    if (mixed_up) {
      received->error.emplace(Code::kUnavailable, kMixedUp);
      received->outputs.clear();
      received->parameters.clear();
    }
    return received;
  } catch (...) {
    return nullptr;
  }
}

// A response with the recorded text of a segment.
std::unique_ptr<ReceivedResponse> relayed_response(const std::string& output,
                                                   const Segment& segment) {
  auto response = std::make_unique<ReceivedResponse>();
  const auto length = static_cast<uint32_t>(segment.record.size());
  Buffer* buffer = Buffer::allocate(length + sizeof(length));
  Tensor tensor;
  tensor.buffer = BufferReference(buffer);
  buffer->release();
  std::memcpy(buffer->data(), &length, sizeof(length));
  std::memcpy(buffer->data() + sizeof(length), segment.record.data(), length);
  tensor.name = output;
  tensor.type = DataType::kBytes;
  tensor.shape = {1};
  tensor.byte_size = length + sizeof(length);
  response->outputs.push_back(std::move(tensor));
  response->relayed = segment.tokens;
  return response;
}

// No exception may cross into the core, which calls these two.
void on_response(InferenceResponse* response, const uint32_t flags, void* userp) noexcept {
  const std::shared_ptr<InFlight> in_flight = static_cast<InFlight*>(userp)->kept_by_triton;
  const bool final = (flags & kResponseFinal) != 0;
  const bool mixed_up = in_flight->queue->stubs.mixes_up(in_flight->model, in_flight->epoch);
  if (response != nullptr && flags == 0 && !mixed_up && relayed(in_flight, response)) {
    ignore(server_api.InferenceResponseDelete(response));
    return;
  }
  auto received = received_response(*in_flight, response, final, mixed_up);
  if (response != nullptr) ignore(server_api.InferenceResponseDelete(response));
  in_flight->queue->push(in_flight, std::move(received), final);
}

void on_request_released(InferenceRequest*, const uint32_t flags, void* userp) noexcept {
  if ((flags & kRequestReleaseAll) == 0) return;
  Leftovers leftovers;
  InFlight& in_flight = *static_cast<InFlight*>(userp);
  const std::shared_ptr<ResponseQueue> queue = in_flight.queue;  // its lock outlives the InFlight
  const std::lock_guard lock(queue->mutex);
  in_flight.released = true;
  // Python objects cannot be released on Triton's threads, which have no GIL: the next drain does.
  if ((in_flight.cancelled && in_flight.finished) || in_flight.holds_memory())
    queue->enqueue(in_flight.kept_by_triton);
  leftovers.take(in_flight);
}

void release_outputs(std::vector<OutputRequest>& outputs) {
  for (OutputRequest& output : outputs) {
    if (output.placed) PyBuffer_Release(&output.memory);
  }
  outputs.clear();
}

// Releases the inputs of a request that Triton has released, and the memory of its outputs once it
// is over. Needs the GIL.
void release_memory(InFlight& in_flight) {
  if (!in_flight.holds_memory()) return;
  std::vector<Py_buffer> borrowed;
  std::vector<OutputRequest> outputs;
  {
    const std::lock_guard lock(in_flight.queue->mutex);
    if (in_flight.released) borrowed.swap(in_flight.borrowed_inputs);
    if (is_over(in_flight)) outputs.swap(in_flight.outputs);
  }
  for (Py_buffer& buffer : borrowed) PyBuffer_Release(&buffer);
  release_outputs(outputs);
}

}  // namespace

ResponseAllocator* new_response_allocator() {
  ResponseAllocator* allocator = nullptr;
  check(server_api.ResponseAllocatorNew(&allocator, allocate, release_buffer, nullptr));
  return allocator;
}

void ResponseQueue::push(const std::shared_ptr<InFlight>& in_flight,
                         std::unique_ptr<ReceivedResponse> response, bool final) noexcept {
  Leftovers leftovers;
  const std::lock_guard lock(mutex);
  ++in_flight->received;
  end_segment(*in_flight);
  if (final) {
    in_flight->finished = true;
    leftovers.take(*in_flight);
  }
  try {
    // After a lost response the stream would have a gap: drop the later ones.
    if (response != nullptr && !in_flight->lost && !in_flight->abandoned)
      in_flight->responses.push_back(std::move(response));
    else if (response != nullptr && in_flight->abandoned)
      push_abandoned(*in_flight, std::move(response));
    else
      in_flight->lost = true;
  } catch (const std::bad_alloc&) {
    in_flight->lost = true;
  }
  enqueue(in_flight);
}

void ResponseQueue::push_abandoned(InFlight& in_flight,
                                   std::unique_ptr<ReceivedResponse> response) {
  // Signs that the backend works: see `answered_late` of responses.py.
  const auto works = [](const ReceivedResponse& each) {
    return !each.error || each.error->first == Code::kCancelled;
  };
  auto& kept = in_flight.responses;
  if (!response->final && !kept.empty() && (!works(*response) || works(*kept.back()))) return;
  response->outputs.clear();
  response->parameters.clear();
  kept.push_back(std::move(response));
}

bool ResponseQueue::push_text(const std::shared_ptr<InFlight>& in_flight,
                              const TextResponse& response) {
  const std::lock_guard lock(mutex);
  Relay* relay = in_flight->relay.get();
  if (relay == nullptr || response.output != relay->output || !in_flight->responses.empty() ||
      in_flight->lost)
    return false;
  if (!relay->add(response)) return false;
  ++relay->texts;
  ++in_flight->received;
  if (relay->due()) enqueue(in_flight);
  return true;
}

bool Relay::due() const {
  return has_news() && (!held || text.size() + frames.size() >= kHeldBytes);
}

bool Relay::add(const TextResponse& response) {
  const bool with_logprobs = response.logprobs.token_ids != nullptr;
  if (with_logprobs != (logprobs != nullptr)) return false;
  if (with_logprobs) return logprobs->append(frames, response.text, response.logprobs);
  if (!parsed) {
    text.append(response.text);
    return true;
  }
  if (segment == nullptr || response.text.size() > segment->room) return false;
  segment->record.reserve(segment->record.size() + response.text.size());  // may throw: first
  if (!segment->scanner->pass(response.text, text)) return false;
  segment->record.append(response.text);
  segment->room -= response.text.size();
  // The parser counts a response without ids in the same way.
  segment->tokens += response.tokens != 0 ? response.tokens : !response.text.empty();
  if (around.empty()) text.clear();
  return true;
}

void ResponseQueue::end_segment(InFlight& in_flight) noexcept {
  if (in_flight.relay == nullptr || in_flight.relay->segment == nullptr) return;
  const std::unique_ptr<Segment> segment = std::move(in_flight.relay->segment);
  if (segment->tokens == 0) return;  // special tokens count, although they have no text
  try {
    in_flight.responses.push_back(relayed_response(in_flight.relay->output, *segment));
  } catch (const std::bad_alloc&) {
    in_flight.lost = true;
  }
}

void ResponseQueue::wake(const std::shared_ptr<InFlight>& in_flight) noexcept {
  const std::lock_guard lock(mutex);
  enqueue(in_flight);
}

namespace {

// The step of `run_step` that this thread is in, and the queue that it drains at its end.
struct Step {
  std::shared_ptr<ResponseQueue> answered;
};
thread_local Step* running_step = nullptr;

bool is_drained_by_step(const std::shared_ptr<ResponseQueue>& queue) noexcept {
  if (running_step == nullptr) return false;
  std::shared_ptr<ResponseQueue>& answered = running_step->answered;
  if (answered == nullptr) answered = queue;
  return answered == queue;
}

}  // namespace

void ResponseQueue::enqueue(const std::shared_ptr<InFlight>& in_flight) noexcept {
  if (in_flight->queued) return;
  in_flight->queued = true;
  const bool first = ready_ == nullptr;
  (first ? ready_ : last_ready_->next_ready) = in_flight;
  last_ready_ = in_flight.get();
  if (!first || is_drained_by_step(in_flight->queue)) return;
  event_.set();
  signalled_ = true;
}

std::shared_ptr<InFlight> ResponseQueue::take_ready() noexcept {
  const std::lock_guard lock(mutex);
  if (std::exchange(signalled_, false)) event_.clear();
  return std::move(ready_);
}

std::shared_ptr<InFlight> ResponseQueue::next_of(std::shared_ptr<InFlight>& ready) noexcept {
  const std::lock_guard lock(mutex);
  std::shared_ptr<InFlight> next = std::move(ready->next_ready);
  ready->queued = false;
  ready.swap(next);
  return next;
}

// ---- under the GIL ----

nb::object run_step(const nb::callable& function, const nb::args& arguments) {
  if (running_step != nullptr) return function(*arguments);  // the outer one drains
  Step step;
  running_step = &step;
  nb::object result;
  std::exception_ptr raised;
  try {
    result = function(*arguments);
  } catch (...) {
    raised = std::current_exception();
  }
  running_step = nullptr;
  if (step.answered != nullptr) step.answered->drain();
  if (raised != nullptr) std::rethrow_exception(raised);
  return result;
}

void ResponseQueue::drain() {
  for (std::shared_ptr<InFlight> ready = take_ready(); ready != nullptr;) {
    const std::shared_ptr<InFlight> in_flight = next_of(ready);
    release_memory(*in_flight);
    if (in_flight->stream == nullptr) continue;
    const nb::object kept = nb::borrow(in_flight->stream);  // a writer may let go of its stream
    auto* stream = nb::inst_ptr<ResponseStream>(kept);
    try {
      stream->wake();
    } catch (const std::exception& error) {  // of this stream: the others are woken all the same
      stream->fail_relay(error);
    }
  }
}

void ResponseQueue::clear() {
  for (std::shared_ptr<InFlight> ready = take_ready(); ready != nullptr;)
    release_memory(*next_of(ready));
}

namespace {

// Gives a future the result None, unless its consumer has gone.
void complete(const nb::object& future) {
  static PyObject* const done = PyUnicode_InternFromString("done");
  static PyObject* const set_result = PyUnicode_InternFromString("set_result");
  const nb::object is_done = nb::steal(PyObject_CallMethodNoArgs(future.ptr(), done));
  if (!is_done.is_valid()) throw nb::python_error();
  if (is_done.is(nb::bool_(true))) return;
  if (!nb::steal(PyObject_CallMethodOneArg(future.ptr(), set_result, Py_None)).is_valid())
    throw nb::python_error();
}

}  // namespace

void ResponseStream::wake() {
  if (!write.is_none()) flush_relay();
  if (!release_waiter.is_none() && over()) {
    complete(release_waiter);
    release_waiter = nb::none();
  }
  // A consumer that did not wait has taken them already; it now waits for later responses.
  if (waiter.is_none() || !has_news()) return;
  complete(waiter);
  waiter = nb::none();
}

namespace {

// A constant part, with the frame's number in its slot.
void append_part(std::string& frames, std::string_view part, std::string_view number) {
  const size_t slot = number.empty() ? part.npos : part.find(kNumberSlot);
  frames += part.substr(0, slot);
  if (slot == part.npos) return;
  frames += number;
  frames += part.substr(slot + 1);
}

// The text as frames; a numbered stream's next number rises by their count.
std::string framed(const std::vector<std::string>& around, std::string_view left,
                   std::optional<uint64_t>& number) {
  size_t constant = 16;
  for (const std::string& part : around) constant += part.size();
  std::string frames;
  frames.reserve(constant + left.size() * (around.size() - 1));
  while (!left.empty()) {
    const std::string_view text = left.substr(0, end_of_characters(left, kFrameBytes));
    const std::string digits = number ? std::to_string((*number)++) : std::string();
    append_part(frames, around.front(), digits);
    for (size_t part = 1; part < around.size(); ++part) {
      append_json(frames, text);
      append_part(frames, around[part], digits);
    }
    left.remove_prefix(text.size());
  }
  return frames;
}

}  // namespace

ResponseStream::~ResponseStream() {
  in_flight_->stream = nullptr;
  std::vector<std::unique_ptr<ReceivedResponse>> untaken;  // released after the lock
  {
    const std::lock_guard lock(in_flight_->queue->mutex);
    in_flight_->abandoned = true;
    in_flight_->relay.reset();
    untaken.swap(in_flight_->responses);
  }
  cancel();
}

bool ResponseStream::has_news() const {
  const std::lock_guard lock(in_flight_->queue->mutex);
  return !in_flight_->responses.empty() || in_flight_->lost || !failure.is_none();
}

void ResponseStream::relay(std::string output, nb::bytes before, nb::bytes after, nb::object writer,
                           nb::object frame_numbers) {
  auto relay = std::make_unique<Relay>();
  relay->output = std::move(output);
  relay->around.emplace_back(before.c_str(), before.size());
  relay->around.emplace_back(after.c_str(), after.size());
  set_relay(std::move(relay), std::move(writer), std::move(frame_numbers));
}

void ResponseStream::relay_logprobs(std::string output, nb::bytes before, nb::bytes between,
                                    nb::bytes after, uint64_t vocabulary, size_t top,
                                    nb::object writer) {
  auto relay = std::make_unique<Relay>();
  relay->output = std::move(output);
  relay->logprobs = std::make_unique<LogprobFrames>(
      std::string(before.c_str(), before.size()), std::string(between.c_str(), between.size()),
      std::string(after.c_str(), after.size()), TokenTable::of(vocabulary), top);
  set_relay(std::move(relay), std::move(writer), nb::none());
}

void ResponseStream::relay_segments(std::string output, nb::object writer,
                                    nb::object frame_numbers) {
  auto relay = std::make_unique<Relay>();
  relay->output = std::move(output);
  relay->parsed = true;
  set_relay(std::move(relay), std::move(writer), std::move(frame_numbers));
}

void ResponseStream::set_relay(std::unique_ptr<Relay> relay, nb::object writer,
                               nb::object frame_numbers) {
  // Let go of at the end: the end of the one before may run any code.
  const nb::object before_writer = std::exchange(write, std::move(writer));
  const nb::object before_numbers = std::exchange(numbers, std::move(frame_numbers));
  stream_writer_ =
      nb::isinstance<StreamWriter>(write) ? nb::inst_ptr<StreamWriter>(write) : nullptr;
  const std::lock_guard lock(in_flight_->queue->mutex);
  if (in_flight_->relay != nullptr) {
    relay->text = std::move(in_flight_->relay->text);
    relay->texts = in_flight_->relay->texts;
  }
  in_flight_->relay = std::move(relay);
  if (!in_flight_->relay->text.empty()) in_flight_->queue->enqueue(in_flight_);
}

bool ResponseStream::relay_text(const nb::list& around, std::vector<std::string> markers,
                                size_t room) {
  return begin_segment(around, std::make_unique<MarkerScanner>(std::move(markers)), room);
}

bool ResponseStream::relay_json(const nb::list& around, std::string open, char position,
                                size_t room) {
  return begin_segment(around, std::make_unique<JsonScanner>(std::move(open), position), room);
}

bool ResponseStream::begin_segment(const nb::list& around, std::unique_ptr<TextScanner> scanner,
                                   size_t room) {
  std::vector<std::string> parts;
  for (nb::handle part : around) {
    const auto bytes = nb::cast<nb::bytes>(part);
    parts.emplace_back(bytes.c_str(), bytes.size());
  }
  auto segment = std::make_unique<Segment>();
  segment->scanner = std::move(scanner);
  segment->room = room;
  const std::lock_guard lock(in_flight_->queue->mutex);
  Relay* relay = in_flight_->relay.get();
  if (relay == nullptr || !relay->parsed || relay->segment != nullptr) return false;
  if (!in_flight_->responses.empty() || in_flight_->lost) return false;
  // The text of the previous segment was written when its record was taken.
  relay->around = std::move(parts);
  relay->segment = std::move(segment);
  return true;
}

void ResponseStream::resume_relay() {
  {
    const std::lock_guard lock(in_flight_->queue->mutex);
    if (in_flight_->relay == nullptr) return;
    in_flight_->relay->held = false;
  }
  flush_relay();
}

std::optional<uint64_t> ResponseStream::next_number() const {
  if (numbers.is_none()) return std::nullopt;
  const nb::object next = numbers.attr("next");
  const uint64_t number = PyLong_AsUnsignedLongLong(next.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

void ResponseStream::set_next_number(const std::optional<uint64_t>& number) {
  if (number) numbers.attr("next") = nb::cast(*number);
}

std::string ResponseStream::next_frames(bool even_if_held, std::optional<uint64_t>& number) {
  Relay* relay = in_flight_->relay.get();
  if (relay == nullptr || !(even_if_held ? relay->has_news() : relay->due())) return {};
  std::string frames = relay->logprobs != nullptr ? std::exchange(relay->frames, {})
                                                  : framed(relay->around, relay->text, number);
  relay->text.clear();
  relay_counts.texts.fetch_add(std::exchange(relay->texts, 0), std::memory_order_relaxed);
  relay_counts.writes.fetch_add(1, std::memory_order_relaxed);
  return frames;
}

void ResponseStream::flush_relay() {
  std::string frames;
  try {
    std::optional<uint64_t> number = next_number();
    {
      const std::lock_guard lock(in_flight_->queue->mutex);
      frames = next_frames(false, number);
    }
    set_next_number(number);
  } catch (const std::exception& error) {
    fail_relay(error);
    return;
  }
  write_frames(frames);
}

bool ResponseStream::written(const std::string& frames) {
  const nb::object kept = write;  // the call may stop the relay
  if (stream_writer_ != nullptr) return stream_writer_->write(frames);
  const nb::object answer = write(nb::bytes(frames.data(), frames.size()));
  const int held = PyObject_IsTrue(answer.ptr());
  if (held < 0) throw nb::python_error();
  return held != 0;
}

void ResponseStream::write_frames(const std::string& frames) {
  if (frames.empty()) return;
  try {
    if (!written(frames)) return;
  } catch (const std::exception& error) {
    fail_relay(error);
    return;
  }
  const std::lock_guard lock(in_flight_->queue->mutex);
  if (in_flight_->relay != nullptr) in_flight_->relay->held = true;
}

void ResponseStream::fail_relay(const std::exception& error) {
  if (const auto* raised = dynamic_cast<const nb::python_error*>(&error)) {
    failure = nb::borrow(raised->value());
  } else {  // out of memory; Python keeps a reserve to create this exception
    failure = nb::steal(PyObject_CallNoArgs(PyExc_MemoryError));
    if (!failure.is_valid()) throw nb::python_error();
  }
  stop_relay();
  in_flight_->queue->wake(in_flight_);
}

void ResponseStream::await_release(nb::object waiter) {
  if (!waiter.is_none()) {
    const std::lock_guard lock(in_flight_->queue->mutex);
    in_flight_->abandoned = true;
  }
  release_waiter = std::move(waiter);
}

void ResponseStream::stop_relay() {
  {
    const std::lock_guard lock(in_flight_->queue->mutex);
    in_flight_->relay.reset();
  }
  stream_writer_ = nullptr;  // first: the end of the writer may run any code
  write = nb::none();
  numbers = nb::none();
}

nb::list ResponseStream::take() {
  std::vector<std::unique_ptr<ReceivedResponse>> taken;
  std::string frames;
  std::optional<uint64_t> number = next_number();
  {
    const std::lock_guard lock(in_flight_->queue->mutex);
    frames = next_frames(true, number);  // the text before these responses, and nothing after them
    taken.swap(in_flight_->responses);
  }
  set_next_number(number);
  write_frames(frames);
  if (!failure.is_none()) {
    {
      const std::lock_guard lock(in_flight_->queue->mutex);
      auto& responses = in_flight_->responses;
      responses.insert(responses.begin(), std::make_move_iterator(taken.begin()),
                       std::make_move_iterator(taken.end()));
    }
    const nb::object raised = std::exchange(failure, nb::none());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    throw nb::python_error();
  }
  nb::list responses;
  for (auto& response : taken) responses.append(nb::cast(std::move(response)));
  if (auto error = take_lost()) responses.append(nb::cast(std::move(error)));
  return responses;
}

std::unique_ptr<ReceivedResponse> ResponseStream::take_lost() {
  const std::lock_guard lock(in_flight_->queue->mutex);
  if (!in_flight_->lost) return nullptr;
  auto response = std::make_unique<ReceivedResponse>();
  response->final = in_flight_->finished;
  response->error.emplace(Code::kUnavailable, "no memory for a response");
  in_flight_->lost = false;
  return response;
}

std::optional<size_t> ResponseStream::cancel() {
  size_t input_bytes = 0;
  {
    Leftovers leftovers;
    const std::lock_guard lock(in_flight_->queue->mutex);
    if (in_flight_->finished) return std::nullopt;
    if (in_flight_->request != nullptr)
      ignore(server_api.InferenceRequestCancel(in_flight_->request));
    in_flight_->cancelled = true;
    leftovers.take(*in_flight_);
    if (!in_flight_->released) {
      for (const auto& input : in_flight_->copied_inputs) input_bytes += input.size();
      for (const Py_buffer& input : in_flight_->borrowed_inputs) input_bytes += input.len;
    }
  }
  notify_cancel();
  return input_bytes;
}

bool ResponseStream::finished() const {
  const std::lock_guard lock(in_flight_->queue->mutex);
  return in_flight_->finished;
}

bool ResponseStream::over() const {
  const std::lock_guard lock(in_flight_->queue->mutex);
  return is_over(*in_flight_);
}

uint64_t ResponseStream::received() const {
  const std::lock_guard lock(in_flight_->queue->mutex);
  return in_flight_->received;
}

namespace {

// The request until Triton has taken it: deleted again where building or sending it fails.
class PendingRequest {
 public:
  explicit PendingRequest(const std::shared_ptr<InFlight>& in_flight) : in_flight_(in_flight) {}
  PendingRequest(const PendingRequest&) = delete;
  PendingRequest& operator=(const PendingRequest&) = delete;
  ~PendingRequest() {
    if (sent_) return;
    if (in_flight_->request != nullptr)
      ignore(server_api.InferenceRequestDelete(in_flight_->request));
    in_flight_->request = nullptr;
    in_flight_->finished = true;
    for (Py_buffer& buffer : in_flight_->borrowed_inputs) PyBuffer_Release(&buffer);
    in_flight_->borrowed_inputs.clear();
    release_outputs(in_flight_->outputs);
  }
  void sent() { sent_ = true; }

 private:
  const std::shared_ptr<InFlight>& in_flight_;
  bool sent_ = false;
};

std::vector<int64_t> read_shape(nb::handle value) {
  std::vector<int64_t> shape;
  for (nb::handle dimension : value) shape.push_back(nb::cast<int64_t>(dimension));
  return shape;
}

// Bytes that live until the request is released: a copy of small inputs, the caller's own memory
// for large ones.
std::pair<const void*, size_t> keep_input_data(InFlight& in_flight, nb::handle data) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
  const auto size = static_cast<size_t>(view.len);
  try {
    if (size >= kBorrowBytes) {
      in_flight.borrowed_inputs.push_back(view);
      return {view.buf, size};
    }
    const char* begin = static_cast<const char*>(view.buf);
    in_flight.copied_inputs.emplace_back(begin, begin + size);
  } catch (const std::bad_alloc&) {
    PyBuffer_Release(&view);
    throw;
  }
  PyBuffer_Release(&view);
  return {in_flight.copied_inputs.back().data(), size};
}

void add_input(InFlight& in_flight, nb::handle name, nb::handle value) {
  const auto tensor = nb::cast<nb::tuple>(value);
  if (tensor.size() != 3) throw std::invalid_argument("an input is (dtype, shape, data)");
  const std::string input = nb::cast<std::string>(name);
  const DataType type = parse_data_type(nb::cast<std::string>(tensor[0]));
  const std::vector<int64_t> shape = read_shape(tensor[1]);
  const auto [data, size] = keep_input_data(in_flight, tensor[2]);
  check(server_api.InferenceRequestAddInput(in_flight.request, c_text(input), type, shape.data(),
                                            shape.size()));
  check(server_api.InferenceRequestAppendInputData(in_flight.request, input.c_str(), data, size,
                                                   MemoryType::kCpu, 0));
}

void add_parameter(InferenceRequest* request, const std::string& key, nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) {
    check(server_api.InferenceRequestSetBoolParameter(request, c_text(key), nb::cast<bool>(value)));
  } else if (nb::isinstance<nb::int_>(value)) {
    check(
        server_api.InferenceRequestSetIntParameter(request, c_text(key), nb::cast<int64_t>(value)));
  } else if (nb::isinstance<nb::float_>(value)) {
    check(server_api.InferenceRequestSetDoubleParameter(request, c_text(key),
                                                        nb::cast<double>(value)));
  } else {
    check(server_api.InferenceRequestSetStringParameter(request, c_text(key),
                                                        c_text(nb::cast<std::string>(value))));
  }
}

// Throws if the id is not a text or a number of 64 bits without a sign.
void set_sequence(InferenceRequest* request, nb::handle sequence) {
  const auto step = nb::cast<nb::tuple>(sequence);
  if (step.size() != 3) throw std::invalid_argument("a sequence is (id, start, end)");
  if (nb::isinstance<nb::str>(step[0])) {
    check(server_api.InferenceRequestSetCorrelationIdString(
        request, c_text(nb::cast<std::string>(step[0]))));
  } else {
    check(server_api.InferenceRequestSetCorrelationId(request, nb::cast<uint64_t>(step[0], false)));
  }
  const uint32_t flags =
      (nb::cast<bool>(step[1]) ? kSequenceStart : 0) | (nb::cast<bool>(step[2]) ? kSequenceEnd : 0);
  check(server_api.InferenceRequestSetFlags(request, flags));
}

void request_output(InFlight& in_flight, nb::handle value) {
  const auto wanted = nb::cast<nb::tuple>(value);
  if (wanted.size() != 3) throw std::invalid_argument("an output is (name, labels, memory)");
  const std::string name = nb::cast<std::string>(wanted[0]);
  check(server_api.InferenceRequestAddRequestedOutput(in_flight.request, c_text(name)));
  if (wanted[1].is_none() && wanted[2].is_none()) return;
  OutputRequest& output = in_flight.outputs.emplace_back();
  output.name = name;
  if (!wanted[1].is_none()) output.labels = nb::cast<size_t>(wanted[1]);
  if (wanted[2].is_none()) return;
  const nb::object memory = wanted[2];
  if (PyObject_GetBuffer(memory.ptr(), &output.memory, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0)
    throw nb::python_error();
  output.placed = true;
}

void fill_request(InFlight& in_flight, ResponseAllocator* allocator,
                  const InferArguments& arguments) {
  InferenceRequest* request = in_flight.request;
  if (!arguments.request_id.empty())
    check(server_api.InferenceRequestSetId(request, c_text(arguments.request_id)));
  if (arguments.priority != 0)
    check(server_api.InferenceRequestSetPriorityUInt64(request, arguments.priority));
  if (arguments.timeout_us != 0) {
    check(server_api.InferenceRequestSetTimeoutMicroseconds(request, arguments.timeout_us));
  }
  if (!arguments.sequence.is_none()) set_sequence(request, arguments.sequence);
  for (auto [name, value] : arguments.inputs) add_input(in_flight, name, value);
  if (!arguments.parameters.is_none()) {
    for (auto [key, value] : nb::cast<nb::dict>(arguments.parameters)) {
      add_parameter(request, nb::cast<std::string>(key), value);
    }
  }
  for (nb::handle output : arguments.outputs) request_output(in_flight, output);
  check(server_api.InferenceRequestSetReleaseCallback(request, on_request_released, &in_flight));
  check(server_api.InferenceRequestSetResponseCallback(request, allocator, &in_flight, on_response,
                                                       &in_flight));
}

nb::object parameter_object(const ParameterValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return lenient_str(*text);
  return std::visit([](const auto& held) { return nb::cast(held); }, value);
}

// A waiter refers to the task that waits, and so back to its stream: the garbage collector has to
// see it.
int traverse_stream(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  auto* stream = nb::inst_ptr<ResponseStream>(self);
  Py_VISIT(stream->waiter.ptr());
  Py_VISIT(stream->release_waiter.ptr());
  Py_VISIT(stream->write.ptr());
  Py_VISIT(stream->numbers.ptr());
  Py_VISIT(stream->failure.ptr());
  return 0;
}

int clear_stream(PyObject* self) {
  auto* stream = nb::inst_ptr<ResponseStream>(self);
  stream->waiter = nb::none();
  stream->release_waiter = nb::none();
  stream->stop_relay();
  stream->failure = nb::none();
  return 0;
}

PyType_Slot stream_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_stream)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_stream)},
                              {0, nullptr}};

nb::object response_error(const ReceivedResponse& self) {
  if (!self.error) return nb::none();
  return nb::make_tuple(static_cast<int>(self.error->first), lenient_str(self.error->second));
}

}  // namespace

nb::object infer(triton::Server* server, ResponseAllocator* allocator,
                 const std::shared_ptr<ResponseQueue>& queue, const InferArguments& arguments) {
  auto in_flight = std::make_shared<InFlight>(queue, arguments.model);
  PendingRequest pending(in_flight);
  {
    // The model lookup takes the repository's lock, which a thread that loads or unloads a model
    // may hold while it waits for the GIL.
    const nb::gil_scoped_release release;
    check(server_api.InferenceRequestNew(&in_flight->request, server, c_text(arguments.model),
                                         arguments.version));
  }
  fill_request(*in_flight, allocator, arguments);
  nb::object stream = nb::cast(std::make_unique<ResponseStream>(in_flight));
  InferenceTrace* trace = arguments.trace == nullptr ? nullptr : arguments.trace->begin();
  in_flight->stream = stream.ptr();
  in_flight->kept_by_triton = in_flight;
  live.requests.fetch_add(1, std::memory_order_relaxed);
  try {
    const nb::gil_scoped_release release;
    check(server_api.ServerInferAsync(server, in_flight->request, trace));
  } catch (...) {
    in_flight->kept_by_triton.reset();
    live.requests.fetch_sub(1, std::memory_order_relaxed);
    if (trace != nullptr) arguments.trace->refused(trace);
    throw;
  }
  pending.sent();
  return stream;
}

void bind_inference(nb::module_& module) {
  using nb::literals::operator""_a;
  module.def("run_step", &run_step, "function"_a, "arguments"_a,
             nb::sig("def run_step(function: collections.abc.Callable[..., object], *arguments: "
                     "typing.Any) -> object"),
             "Call a function that sends responses, on the thread of the event loop: their "
             "consumers are woken when it returns or raises, not in the loop's next iteration.");
  nb::class_<ReceivedResponse>(module, "InferenceResponse",
                               "One response: its output tensors, or an error.")
      .def_ro("final", &ReceivedResponse::final)
      .def_ro("relayed", &ReceivedResponse::relayed,
              "Tokens of a text that has been written to the client already; else 0.")
      .def_prop_ro("error", response_error, nb::sig("def error(self) -> tuple[int, str] | None"),
                   "(error code, message), or None")
      .def(
          "item",
          [](const ReceivedResponse& self, std::string_view name) -> nb::object {
            const Tensor* output = self.find(name);
            return output != nullptr
                       ? first_element(output->type, output->data(), output->readable())
                       : nb::none();
          },
          nb::sig("def item(self, name: str, /) -> typing.Any"))
      .def(
          "tolist",
          [](const ReceivedResponse& self, std::string_view name) -> nb::object {
            const Tensor* output = self.find(name);
            return output != nullptr
                       ? nb::object(all_elements(output->type, output->data(), output->readable()))
                       : nb::none();
          },
          nb::sig("def tolist(self, name: str, /) -> list[typing.Any] | None"))
      .def(
          "tensor",
          [](const ReceivedResponse& self, std::string_view name) -> nb::object {
            const Tensor* output = self.find(name);
            return output != nullptr ? nb::cast(*output) : nb::none();
          },
          nb::sig("def tensor(self, name: str, /) -> Tensor | None"))
      .def(
          "label",
          [](const ReceivedResponse& self, std::string_view name, size_t index) -> nb::object {
            for (const auto& [output, labels] : self.labels) {
              if (output == name && index < labels.size() && !labels[index].empty())
                return lenient_str(labels[index]);
            }
            return nb::none();
          },
          nb::sig("def label(self, name: str, index: int, /) -> str | None"),
          "The label of an output's class, if the request asked for labels.")
      .def_prop_ro(
          "names",
          [](const ReceivedResponse& self) {
            nb::list names;
            for (const Tensor& output : self.outputs) names.append(output.name);
            return names;
          },
          nb::sig("def names(self) -> list[str]"))
      .def_prop_ro(
          "parameters",
          [](const ReceivedResponse& self) {
            nb::dict parameters;
            for (const auto& [name, value] : self.parameters)
              parameters[lenient_str(name)] = parameter_object(value);
            return parameters;
          },
          nb::sig("def parameters(self) -> dict[str, typing.Any]"));

  nb::class_<ResponseStream>(module, "ResponseStream", nb::type_slots(stream_slots),
                             "The responses of one request in flight.")
      .def("take", &ResponseStream::take, nb::sig("def take(self) -> list[InferenceResponse]"),
           "All responses that have come since the last call; maybe none.")
      .def("cancel", &ResponseStream::cancel, nb::sig("def cancel(self) -> int | None"),
           "Asks Triton to end the request. Returns the bytes of inputs that it still holds; None "
           "if the last response has come.")
      .def("relay", &ResponseStream::relay, "output"_a, "before"_a, "after"_a, "write"_a,
           "numbers"_a.none() = nb::none(),
           nb::sig("def relay(self, output: str, before: bytes, after: bytes, write: "
                   "collections.abc.Callable[[bytes], bool], numbers: object | None = None) -> "
                   "None"),
           "From now on, write responses that hold this one text and nothing else as frames. Each "
           "takes its number from `numbers.next`: it replaces the byte 1 in a constant part.")
      .def("relay_logprobs", &ResponseStream::relay_logprobs, "output"_a, "before"_a, "between"_a,
           "after"_a, "vocabulary"_a, "top"_a, "write"_a,
           nb::sig("def relay_logprobs(self, output: str, before: bytes, between: bytes, after: "
                   "bytes, vocabulary: int, top: int, write: collections.abc.Callable[[bytes], "
                   "bool]) -> None"),
           "From now on, write responses that hold a text and the log probabilities of its tokens "
           "as frames: the text between `before` and `between`, `top` alternatives for each token "
           "between `between` and `after`. Responses with a token that `add_token` has not added "
           "to the vocabulary are not written.")
      .def("relay_segments", &ResponseStream::relay_segments, "output"_a, "write"_a,
           "numbers"_a.none() = nb::none(),
           nb::sig("def relay_segments(self, output: str, write: "
                   "collections.abc.Callable[[bytes], bool], numbers: object | None = None) -> "
                   "None"),
           "From now on, write the text of the segments that `relay_text` and `relay_json` begin, "
           "numbered as by `relay`.")
      .def("relay_text", &ResponseStream::relay_text, "around"_a, "markers"_a, "room"_a,
           nb::sig("def relay_text(self, around: list[bytes], markers: list[str], room: int) -> "
                   "bool"),
           "Write text up to one of the markers as frames: JSON strings between `around`. `room` "
           "is how many bytes may come. False if responses wait, which come first.")
      .def("relay_json", &ResponseStream::relay_json, "around"_a, "open"_a, "position"_a, "room"_a,
           nb::sig("def relay_json(self, around: list[bytes], open: str, position: str, room: "
                   "int) -> bool"),
           "The same for a JSON value up to its end, of which the brackets are open that `open` "
           "closes.")
      .def("resume_relay", &ResponseStream::resume_relay, "The paused writer accepts frames again.")
      .def("stop_relay", &ResponseStream::stop_relay, "Write no more.")
      .def_prop_ro("finished", &ResponseStream::finished,
                   "The last response has come (and may be untaken).")
      .def_prop_ro("received", &ResponseStream::received,
                   "Responses that have come so far, relayed ones too.")
      .def_rw("waiter", &ResponseStream::waiter, nb::arg().none(),
              "A future that the next drain completes when a response has come.")
      .def_prop_rw(
          "release_waiter", [](const ResponseStream& self) { return self.release_waiter; },
          &ResponseStream::await_release, nb::for_setter(nb::arg().none()),
          "A future that a drain completes once Triton has released a cancelled request and "
          "sent its last response.");
}

}  // namespace triton
