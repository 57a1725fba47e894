#include "backend.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "buffer.h"
#include "error.h"
#include "event.h"
#include "tensor.h"

namespace triton {

namespace {

// Python's side of the backend: called on Triton's load thread as loader(name, version, folder,
// config JSON), returns (host, completed config JSON). The host receives the executions of that
// model.
nb::object* engine_loader = nullptr;

// Executions on their way to the event loop, and the ones that Python has.
class ExecutionQueue {
 public:
  int fd() const { return event_.fd(); }

  // False where no loop takes executions: the caller answers the request itself.
  bool push(std::unique_ptr<Execution>& execution) {
    const std::lock_guard lock(mutex_);
    if (!open_) return false;
    arrived_.push_back(std::move(execution));
    if (arrived_.size() == 1) event_.set();
    return true;
  }
  void notify_cancel() {
    cancelled_.store(true, std::memory_order_release);
    event_.set();
  }
  std::vector<std::unique_ptr<Execution>> take() {
    event_.clear();
    std::vector<std::unique_ptr<Execution>> taken;
    const std::lock_guard lock(mutex_);
    taken.swap(arrived_);
    return taken;
  }
  bool take_cancelled() { return cancelled_.exchange(false, std::memory_order_acq_rel); }
  void set_open(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
  }

  std::unordered_set<Execution*> live;  // guarded by the GIL

 private:
  Event event_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Execution>> arrived_;
  std::atomic<bool> cancelled_{false};
  bool open_ = false;
};

// Never destroyed: threads of the core may outlive the module's other globals.
ExecutionQueue& executions() {
  static auto* queue = new ExecutionQueue();
  return *queue;
}

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

PyObject* host_of(ModelInstance* instance) {
  Model* model = nullptr;
  void* state = nullptr;
  check(backend_api.ModelInstanceModel(instance, &model));
  check(backend_api.ModelState(model, &state));
  return static_cast<PyObject*>(state);
}

Tensor read_input(Input* input) {
  Tensor tensor;
  const char* name;
  const int64_t* shape;
  uint32_t dimensions;
  uint64_t byte_size;
  uint32_t buffer_count;
  check(backend_api.InputProperties(input, &name, &tensor.type, &shape, &dimensions, &byte_size,
                                    &buffer_count));
  tensor.name = name;
  tensor.shape.assign(shape, shape + dimensions);
  tensor.byte_size = byte_size;
  if (byte_size == 0) return tensor;
  Buffer* buffer = Buffer::allocate(byte_size);
  tensor.buffer = BufferReference(buffer);
  buffer->release();  // the tensor holds the only reference now
  char* target = buffer->data();
  for (uint32_t index = 0; index < buffer_count; ++index) {
    const void* base;
    uint64_t size;
    MemoryType memory = MemoryType::kCpu;
    int64_t memory_id = 0;
    check(backend_api.InputBuffer(input, index, &base, &size, &memory, &memory_id));
    if (memory == MemoryType::kGpu)
      throw TritonError(Code::kUnsupported, "input tensors in GPU memory are not supported");
    std::memcpy(target, base, size);
    target += size;
  }
  return tensor;
}

char* output_buffer(Output* output, uint64_t byte_size) {
  void* buffer = nullptr;
  MemoryType memory = MemoryType::kCpu;
  int64_t memory_id = 0;
  check(backend_api.OutputBuffer(output, &buffer, byte_size, &memory, &memory_id));
  return static_cast<char*>(buffer);
}

void add_output(Response* response, nb::handle described) {
  const auto tensor = nb::cast<nb::tuple>(described);
  const auto name = nb::cast<std::string>(tensor[0]);
  const DataType type = parse_data_type(nb::cast<std::string>(tensor[1]));
  std::vector<int64_t> shape;
  for (nb::handle dimension : tensor[2]) shape.push_back(nb::cast<int64_t>(dimension));
  const ByteView data(tensor[3]);
  Output* output = nullptr;
  check(backend_api.ResponseOutput(response, &output, name.c_str(), type, shape.data(),
                                   static_cast<uint32_t>(shape.size())));
  char* buffer = output_buffer(output, data.size());
  if (data.size() != 0) std::memcpy(buffer, data.data(), data.size());
}

template <typename Number>
int64_t size_of(const std::vector<Number>& numbers) {
  return static_cast<int64_t>(numbers.size());
}

template <typename Number>
void add_numbers(Response* response, const char* name, DataType type,
                 std::initializer_list<int64_t> shape, const std::vector<Number>& numbers) {
  Output* output = nullptr;
  check(backend_api.ResponseOutput(response, &output, name, type, shape.begin(),
                                   static_cast<uint32_t>(shape.size())));
  const size_t byte_size = numbers.size() * sizeof(Number);
  std::memcpy(output_buffer(output, byte_size), numbers.data(), byte_size);
}

// A response that is not sent is deleted.
class PendingResponse {
 public:
  explicit PendingResponse(Response* response) : response_(response) {}
  PendingResponse(const PendingResponse&) = delete;
  PendingResponse& operator=(const PendingResponse&) = delete;
  ~PendingResponse() {
    if (response_ != nullptr) ignore(backend_api.ResponseDelete(response_));
  }
  Response* get() const { return response_; }
  Response* take() { return std::exchange(response_, nullptr); }

 private:
  Response* response_;
};

nb::object parameter_value(ParameterType type, const void* value) {
  switch (type) {
    case ParameterType::kInt:
      return nb::int_(*static_cast<const int64_t*>(value));
    case ParameterType::kBool:
      return nb::bool_(*static_cast<const bool*>(value));
    case ParameterType::kDouble:
      return nb::float_(*static_cast<const double*>(value));
    default:
      return lenient_str(static_cast<const char*>(value));
  }
}

}  // namespace

void notify_cancel() { executions().notify_cancel(); }

Execution::Execution(ModelInstance* instance, Request* request)
    : instance_(instance), request_(request), host_(host_of(instance)), start_ns_(now_ns()) {
  check(backend_api.ResponseFactoryNew(&factory_, request));
  live.executions.fetch_add(1, std::memory_order_relaxed);
}

Execution::~Execution() {
  if (in_python) executions().live.erase(this);
  fail(Code::kInternal, "the engine dropped the request without a response");
  live.executions.fetch_sub(1, std::memory_order_relaxed);
}

std::string Execution::request_id() const {
  const char* id = "";
  if (request_ != nullptr) check(backend_api.RequestId(request_, &id));
  return id;
}

nb::dict Execution::inputs() const {
  nb::dict inputs;
  uint32_t count = 0;
  if (request_ != nullptr) check(backend_api.RequestInputCount(request_, &count));
  for (uint32_t index = 0; index < count; ++index) {
    Input* input = nullptr;
    check(backend_api.RequestInputByIndex(request_, index, &input));
    Tensor tensor = read_input(input);
    const std::string name = tensor.name;
    inputs[name.c_str()] = nb::cast(std::move(tensor));
  }
  return inputs;
}

nb::dict Execution::parameters() const {
  nb::dict parameters;
  uint32_t count = 0;
  if (request_ != nullptr) check(backend_api.RequestParameterCount(request_, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* key;
    ParameterType type;
    const void* value;
    check(backend_api.RequestParameter(request_, index, &key, &type, &value));
    parameters[key] = parameter_value(type, value);
  }
  return parameters;
}

Response* Execution::new_response() const {
  if (ended()) throw TritonError(Code::kInternal, "the request has already ended");
  Response* response = nullptr;
  check(backend_api.ResponseNewFromFactory(&response, factory_));
  return response;
}

void Execution::send_response(Response* response, bool final) {
  Error* error = backend_api.ResponseSend(response, final ? kResponseFinal : 0, nullptr);
  if (final) end(true);
  check(error);
}

void Execution::send(nb::handle outputs, bool final) {
  PendingResponse response(new_response());
  for (nb::handle output : outputs) add_output(response.get(), output);
  send_response(response.take(), final);
}

void Execution::add_bytes(Response* response, const char* name, nb::handle data) {
  const ByteView view(data);
  static constexpr int64_t shape[1] = {1};
  Output* output = nullptr;
  check(backend_api.ResponseOutput(response, &output, name, DataType::kBytes, shape, 1));
  char* buffer = output_buffer(output, view.size() + 4);
  const auto length = static_cast<uint32_t>(view.size());
  std::memcpy(buffer, &length, 4);
  std::memcpy(buffer + 4, view.data(), view.size());
}

void Execution::send_bytes(const char* name, nb::handle data, bool final) {
  PendingResponse response(new_response());
  add_bytes(response.get(), name, data);
  send_response(response.take(), final);
}

void Execution::send_text(nb::handle text, const std::vector<int32_t>& token_ids) {
  PendingResponse response(new_response());
  add_bytes(response.get(), "text_output", text);
  add_numbers(response.get(), "token_ids", DataType::kInt32, {size_of(token_ids)}, token_ids);
  send_response(response.take(), false);
}

void Execution::send_logprobs(nb::handle text, const std::vector<int32_t>& ids,
                              const std::vector<double>& values) {
  PendingResponse response(new_response());
  add_bytes(response.get(), "text_output", text);
  add_numbers(response.get(), "logprob_tokens", DataType::kInt32, {1, size_of(ids)}, ids);
  add_numbers(response.get(), "logprob_values", DataType::kFp64, {1, size_of(values)}, values);
  send_response(response.take(), false);
}

void Execution::finish() {
  if (ended()) return;
  Error* error = backend_api.ResponseFactorySendFlags(factory_, kResponseFinal);
  end(true);
  check(error);
}

void Execution::fail(Code code, const char* message) {
  if (ended()) return;
  Response* response = nullptr;
  Error* error = server_api.ErrorNew(code, message);
  if (Error* refused = backend_api.ResponseNewFromFactory(&response, factory_)) {
    ignore(refused);
    ignore(backend_api.ResponseFactorySendFlags(factory_, kResponseFinal));
  } else {
    ignore(backend_api.ResponseSend(response, kResponseFinal, error));
  }
  ignore(error);
  end(false);
}

bool Execution::is_cancelled() const {
  bool cancelled = false;
  if (!ended()) check(backend_api.ResponseFactoryIsCancelled(factory_, &cancelled));
  return cancelled;
}

void Execution::end(bool success) {
  const uint64_t end_ns = now_ns();
  ignore(backend_api.ModelInstanceReportStatistics(instance_, request_, success, start_ns_,
                                                   start_ns_, end_ns, end_ns));
  ignore(backend_api.ModelInstanceReportBatchStatistics(instance_, 1, start_ns_, start_ns_, end_ns,
                                                        end_ns));
  ignore(backend_api.ResponseFactoryDelete(std::exchange(factory_, nullptr)));
  ignore(backend_api.RequestRelease(std::exchange(request_, nullptr), kRequestReleaseAll));
}

namespace {

nb::list drain_executions() {
  nb::list drained;
  for (auto& execution : executions().take()) {
    nb::handle host(execution->host());
    executions().live.insert(execution.get());
    execution->in_python = true;
    // Its cancel may have been reported while it was on its way here, where no report finds it.
    if (execution->is_cancelled()) executions().notify_cancel();
    drained.append(nb::make_tuple(nb::borrow(host), nb::cast(std::move(execution))));
  }
  return drained;
}

// (host, execution) for each that Python has and `wanted` picks. All are held before the list is
// made: that may run the garbage collector, which takes executions out of `live`.
template <typename Predicate>
nb::list hosted(Predicate&& wanted) {
  std::vector<std::pair<nb::object, nb::object>> held;
  for (Execution* execution : executions().live) {
    // The host too: an execution that ends meanwhile keeps its model no longer.
    if (wanted(*execution)) held.emplace_back(nb::borrow(execution->host()), nb::find(*execution));
  }
  nb::list listed;
  for (const auto& [host, execution] : held) listed.append(nb::make_tuple(host, execution));
  return listed;
}

nb::list take_cancelled_executions() {
  if (!executions().take_cancelled()) return nb::list();
  return hosted([](Execution& execution) {
    if (execution.cancel_reported || !execution.is_cancelled()) return false;
    return execution.cancel_reported = true;
  });
}

// Closes the queue, fails the executions that have not reached Python yet, and returns those that
// Python still has to end.
nb::list close_executions(const std::string& reason) {
  executions().set_open(false);
  for (auto& execution : executions().take()) execution->fail(Code::kUnavailable, reason.c_str());
  return hosted([](const Execution& execution) { return !execution.ended(); });
}

std::string model_config(Model* model) {
  Message* message = nullptr;
  check(backend_api.ModelConfig(model, 1, &message));
  const char* base;
  size_t size;
  Error* error = server_api.MessageSerializeToJson(message, &base, &size);
  std::string json = error == nullptr ? std::string(base, size) : std::string();
  ignore(server_api.MessageDelete(message));
  check(error);
  return json;
}

void complete_config(Model* model, const std::string& json) {
  bool auto_complete = false;
  check(backend_api.ModelAutoCompleteConfig(model, &auto_complete));
  if (!auto_complete) return;
  Message* message = nullptr;
  check(server_api.MessageNewFromSerializedJson(&message, json.data(), json.size()));
  Error* error = backend_api.ModelSetConfig(model, 1, message);
  ignore(server_api.MessageDelete(message));
  check(error);
}

void load_engine(Model* model) {
  const char* name;
  uint64_t version;
  ArtifactType artifact;
  const char* folder;
  check(backend_api.ModelName(model, &name));
  check(backend_api.ModelVersion(model, &version));
  check(backend_api.ModelRepository(model, &artifact, &folder));
  const std::string config = model_config(model);

  const nb::gil_scoped_acquire acquire;
  if (engine_loader == nullptr) throw TritonError(Code::kUnavailable, "no engine loader is set");
  const auto loaded = nb::cast<nb::tuple>((*engine_loader)(name, version, folder, config));
  nb::object host = loaded[0];
  try {
    complete_config(model, nb::cast<std::string>(loaded[1]));
    check(backend_api.ModelSetState(model, host.ptr()));
  } catch (...) {
    host.attr("unload")();
    throw;
  }
  host.release();  // the model owns it; unload_engine takes it back
}

// An exception's own text, or its type's name where its __str__ raises too.
std::string message(const nb::python_error& error) {
  try {
    return nb::cast<std::string>(nb::str(error.value()));
  } catch (const std::exception&) {
    return nb::cast<std::string>(nb::type_name(error.type()));
  }
}

template <typename Function>
Error* translated(Function&& function) {
  try {
    function();
    return nullptr;
  } catch (nb::python_error& error) {
    const nb::gil_scoped_acquire acquire;
    return make_error(Code::kInternal, message(error));
  } catch (const TritonError& error) {
    return make_error(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return server_api.ErrorNew(Code::kUnavailable, "out of memory");
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, error.what());
  }
}

// Runs `function`; an exception becomes the Triton error that is returned. No exception may cross
// into the core, nor one that is thrown while the error is made.
template <typename Function>
Error* guarded(Function&& function) noexcept {
  try {
    return translated(function);
  } catch (...) {
    return server_api.ErrorNew(Code::kUnavailable, "out of memory");
  }
}

void unload_engine(Model* model) {
  void* state = nullptr;
  check(backend_api.ModelState(model, &state));
  if (state == nullptr) return;
  const nb::gil_scoped_acquire acquire;
  const nb::object host = nb::steal(static_cast<PyObject*>(state));
  host.attr("unload")();
}

// Fails if the engine is dead. Cores since 2025-12 ask before they call a model ready.
void check_engine(ModelInstance* instance) {
  const nb::handle host(host_of(instance));
  const nb::gil_scoped_acquire acquire;
  const nb::object failure = host.attr("failure")();
  if (!failure.is_none()) throw TritonError(Code::kUnavailable, nb::cast<std::string>(failure));
}

// The core owns the requests until Execute returns without an error, so this never fails: each
// request is answered.
void execute(ModelInstance* instance, Request* request) noexcept {
  std::unique_ptr<Execution> execution;
  if (Error* error = guarded([&] { execution = std::make_unique<Execution>(instance, request); })) {
    Response* response = nullptr;
    ResponseFactory* factory = nullptr;
    if (backend_api.ResponseFactoryNew(&factory, request) == nullptr) {
      if (backend_api.ResponseNewFromFactory(&response, factory) == nullptr) {
        ignore(backend_api.ResponseSend(response, kResponseFinal, error));
      }
      ignore(backend_api.ResponseFactoryDelete(factory));
    }
    ignore(error);
    ignore(backend_api.RequestRelease(request, kRequestReleaseAll));
    return;
  }
  try {
    if (executions().push(execution)) return;
    execution->fail(Code::kUnavailable, "the server is stopping");
  } catch (const std::bad_alloc&) {
    execution->fail(Code::kUnavailable, "no memory for the request");
  }
}

}  // namespace

void bind_backend(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<Execution>(
      module, "Execution",
      "One request at the in-process backend. End it once: send(final=True), finish() or fail().")
      .def_prop_ro("request_id", &Execution::request_id)
      .def("inputs", &Execution::inputs, nb::sig("def inputs(self) -> dict[str, Tensor]"),
           "The input tensors by name, copied out of Triton's memory.")
      .def("parameters", &Execution::parameters,
           nb::sig("def parameters(self) -> dict[str, typing.Any]"))
      .def("send", &Execution::send, "outputs"_a, "final"_a = false,
           "One response; an output is (name, dtype, shape, data in Triton's layout).")
      .def("send_bytes", &Execution::send_bytes, "output"_a, "data"_a, "final"_a = false,
           "One response with one BYTES element, the cheapest response there is.")
      .def("finish", &Execution::finish, "Ends the responses without another one.")
      .def(
          "fail",
          [](Execution& self, int code, const nb::str& message) {
            // A report of a failure must not fail at a lone surrogate.
            PyObject* encoded =
                PyUnicode_AsEncodedString(message.ptr(), "utf-8", "backslashreplace");
            if (encoded == nullptr) throw nb::python_error();
            self.fail(static_cast<Code>(code), nb::steal<nb::bytes>(encoded).c_str());
          },
          "code"_a, "message"_a)
      .def_prop_ro("cancelled", &Execution::is_cancelled)
      .def_prop_ro("ended", &Execution::ended);

  module.def(
      "set_engine_loader",
      [](nb::object loader) {
        delete engine_loader;
        engine_loader = loader.is_none() ? nullptr : new nb::object(std::move(loader));
      },
      "loader"_a.none());
  module.def("execution_fd", [] { return executions().fd(); });
  module.def("open_executions", [] { executions().set_open(true); });
  module.def("close_executions", &close_executions, "reason"_a,
             nb::sig("def close_executions(reason: str) -> list[tuple[typing.Any, Execution]]"));
  module.def("drain_executions", &drain_executions,
             nb::sig("def drain_executions() -> list[tuple[typing.Any, Execution]]"),
             "(host, execution) for each request that has arrived.");
  module.def("take_cancelled_executions", &take_cancelled_executions,
             nb::sig("def take_cancelled_executions() -> list[tuple[typing.Any, Execution]]"),
             "(host, execution) for each one cancelled since the last call; each is told once.");
}

}  // namespace triton

// ---- entry points, which the core finds by name in this library ----

#define TRITON_EXPORT extern "C" __attribute__((visibility("default")))

TRITON_EXPORT triton::Error* TRITONBACKEND_GetBackendAttribute(
    triton::Backend*, triton::BackendAttribute* attribute) {
  // One instance, tied to no device: an engine places itself.
  return triton::backend_api.BackendAttributeAddPreferredInstanceGroup(
      attribute, triton::InstanceGroupKind::kModel, 1, nullptr, 0);
}

TRITON_EXPORT triton::Error* TRITONBACKEND_ModelInitialize(triton::Model* model) {
  return triton::guarded([&] { triton::load_engine(model); });
}

TRITON_EXPORT triton::Error* TRITONBACKEND_ModelFinalize(triton::Model* model) {
  return triton::guarded([&] { triton::unload_engine(model); });
}

TRITON_EXPORT triton::Error* TRITONBACKEND_ModelInstanceReady(triton::ModelInstance* instance) {
  return triton::guarded([&] { triton::check_engine(instance); });
}

TRITON_EXPORT triton::Error* TRITONBACKEND_ModelInstanceExecute(triton::ModelInstance* instance,
                                                                triton::Request** requests,
                                                                const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) triton::execute(instance, requests[index]);
  return nullptr;
}
