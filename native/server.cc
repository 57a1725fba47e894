#include "server.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "inference.h"
#include "running_threads.h"
#include "server_options.h"
#include "triton_api.h"

namespace triton {

namespace nb = nanobind;

namespace {

std::string take_json(Message* message) {
  const char* base;
  size_t size;
  Error* error = server_api.MessageSerializeToJson(message, &base, &size);
  std::string json = error == nullptr ? std::string(base, size) : std::string();
  ignore(server_api.MessageDelete(message));
  check(error);
  return json;
}

using ServerReference = std::shared_ptr<triton::Server>;

// Keeps the objects that the threads of a core that did not end still use. A leak detector does not
// report them.
void keep(ServerReference server, ResponseAllocator* allocator) {
  static auto* const kept = new std::vector<std::pair<ServerReference, ResponseAllocator*>>;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  kept->emplace_back(std::move(server), allocator);
}

// The core deletes a model on a detached thread, which locks a mutex of the core after the model
// counts as unloaded: without the wait, it would write to memory that has been freed.
void delete_idle_server(triton::Server* server) {
  wait_for_running_threads();
  ignore(server_api.ServerDelete(server));
}

// Deletes a server after its last call. Its threads may wait for the GIL, so it must not be held.
void delete_server(triton::Server* server) {
  if (PyGILState_Check() != 0) {
    const nb::gil_scoped_release release;
    delete_idle_server(server);
  } else {
    delete_idle_server(server);
  }
}

// Load parameters, deleted when the call is over.
class LoadParameters {
 public:
  ~LoadParameters() {
    for (const Parameter* parameter : parameters_)
      server_api.ParameterDelete(const_cast<Parameter*>(parameter));
  }
  void add_string(const std::string& name, const std::string& value) {
    parameters_.push_back(
        server_api.ParameterNew(c_text(name), ParameterType::kString, c_text(value)));
  }
  // Triton keeps the pointer, not the bytes: `value` must outlive the load.
  void add_bytes(const std::string& name, nb::bytes value) {
    parameters_.push_back(server_api.ParameterBytesNew(c_text(name), value.c_str(), value.size()));
  }
  const Parameter** data() { return parameters_.data(); }
  size_t size() const { return parameters_.size(); }

 private:
  std::vector<const Parameter*> parameters_;
};

// Every call that can block, take a lock of the core or wait for a model releases the GIL: threads
// of the core take it when they load or unload a model of the in-process backend, and may hold the
// core's locks then.
class CoreServer {
 public:
  explicit CoreServer(const Options& options) : queue_(std::make_shared<ResponseQueue>()) {
    allocator_ = new_response_allocator();
    const nb::gil_scoped_release release;
    triton::Server* server = nullptr;
    if (Error* error = server_api.ServerNew(&server, options.get())) {
      ignore(server_api.ResponseAllocatorDelete(allocator_));
      check(error);
    }
    server_ = ServerReference(server, delete_server);
  }
  CoreServer(const CoreServer&) = delete;
  CoreServer& operator=(const CoreServer&) = delete;
  ~CoreServer() {
    if (server_ != nullptr) {
      try {
        stop();
      } catch (const TritonError&) {
        // The exit timeout ran out. The core has logged it, and a destructor cannot report it.
      }
    }
    if (allocator_ != nullptr) ignore(server_api.ResponseAllocatorDelete(allocator_));
    queue_->clear();
  }

  // Waits for requests in flight and for the models to unload, at most the exit timeout; then the
  // core is deleted, by the last call that is in it. One that has not ended by then is left as it
  // is.
  void stop() {
    ServerReference stopped = std::exchange(server_, nullptr);
    if (stopped == nullptr) return;
    const nb::gil_scoped_release release;
    Error* error = server_api.ServerStop(stopped.get());
    if (error != nullptr) keep(stopped, std::exchange(allocator_, nullptr));
    stopped.reset();
    check(error);
  }

  bool is_live() const {
    bool live = false;
    call([&](triton::Server* server) { return server_api.ServerIsLive(server, &live); });
    return live;
  }
  bool is_ready() const {
    bool ready = false;
    call([&](triton::Server* server) { return server_api.ServerIsReady(server, &ready); });
    return ready;
  }
  bool model_is_ready(const std::string& name, int64_t version) const {
    bool ready = false;
    call([&](triton::Server* server) {
      return server_api.ServerModelIsReady(server, c_text(name), version, &ready);
    });
    return ready;
  }
  bool model_is_decoupled(const std::string& name, int64_t version) const {
    uint32_t flags = 0;
    void* unused = nullptr;
    call([&](triton::Server* server) {
      return server_api.ServerModelTransactionProperties(server, c_text(name), version, &flags,
                                                         &unused);
    });
    return (flags & kTransactionDecoupled) != 0;
  }
  nb::str metadata() const {
    return json([&](triton::Server* server, Message** message) {
      return server_api.ServerMetadata(server, message);
    });
  }
  nb::str model_metadata(const std::string& name, int64_t version) const {
    return json([&](triton::Server* server, Message** message) {
      return server_api.ServerModelMetadata(server, c_text(name), version, message);
    });
  }
  nb::str model_config(const std::string& name, int64_t version) const {
    return json([&](triton::Server* server, Message** message) {
      return server_api.ServerModelConfig(server, c_text(name), version, 1, message);
    });
  }
  nb::str model_statistics(const std::string& name, int64_t version) const {
    return json([&](triton::Server* server, Message** message) {
      return server_api.ServerModelStatistics(server, c_text(name), version, message);
    });
  }
  nb::str model_index(bool ready_only) const {
    return json([&](triton::Server* server, Message** message) {
      return server_api.ServerModelIndex(server, ready_only ? 1 : 0, message);
    });
  }
  void poll_model_repository() const {
    call([](triton::Server* server) { return server_api.ServerPollModelRepository(server); });
  }
  void load_model(const std::string& name, nb::object config, nb::dict files) const {
    LoadParameters parameters;
    if (!config.is_none()) parameters.add_string("config", nb::cast<std::string>(config));
    for (auto [path, content] : files) {
      parameters.add_bytes("file:" + nb::cast<std::string>(path), nb::cast<nb::bytes>(content));
    }
    call([&](triton::Server* server) {
      return server_api.ServerLoadModelWithParameters(server, c_text(name), parameters.data(),
                                                      parameters.size());
    });
  }
  void unload_model(const std::string& name) const {
    call(
        [&](triton::Server* server) { return server_api.ServerUnloadModel(server, c_text(name)); });
  }
  nb::str metrics() const {
    std::string text;
    call([&](triton::Server* server) {
      Metrics* metrics = nullptr;
      if (Error* error = server_api.ServerMetrics(server, &metrics)) return error;
      const char* base;
      size_t size;
      Error* error = server_api.MetricsFormatted(metrics, MetricFormat::kPrometheus, &base, &size);
      if (error == nullptr) text.assign(base, size);
      ignore(server_api.MetricsDelete(metrics));
      return error;
    });
    return lenient_str(text);
  }
  nb::object infer_async(const InferArguments& arguments) const {
    const ServerReference server = running();
    return infer(server.get(), allocator_, queue_, arguments);
  }
  int response_fd() const { return queue_->fd(); }
  void set_stubs(const Stubs::Running& running) const { queue_->stubs.set(running); }
  nb::dict unhealthy_stubs() const { return queue_->stubs.unhealthy(); }
  void drain() const { queue_->drain(); }

 private:
  // A copy for the time of a call, by which a stop on another thread does not delete the core.
  ServerReference running() const {
    if (server_ == nullptr) throw TritonError(Code::kUnavailable, "the server has stopped");
    return server_;
  }
  template <typename Function>
  void call(Function&& function) const {
    const ServerReference server = running();
    Error* error = nullptr;
    {
      const nb::gil_scoped_release release;
      error = function(server.get());
    }
    check(error);
  }
  // Reasons and parameters in it may be texts of backends.
  template <typename Function>
  nb::str json(Function&& function) const {
    Message* message = nullptr;
    call([&](triton::Server* server) { return function(server, &message); });
    return lenient_str(take_json(message));
  }

  ServerReference server_;  // used with the GIL held
  ResponseAllocator* allocator_ = nullptr;
  std::shared_ptr<ResponseQueue> queue_;
};

}  // namespace

void bind_server(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<CoreServer>(module, "Server", "The core. Runs from its construction until stop().")
      .def(nb::init<const Options&>())
      .def("stop", &CoreServer::stop)
      .def("is_live", &CoreServer::is_live)
      .def("is_ready", &CoreServer::is_ready)
      .def("model_is_ready", &CoreServer::model_is_ready)
      .def("model_is_decoupled", &CoreServer::model_is_decoupled)
      .def("metadata", &CoreServer::metadata)
      .def("model_metadata", &CoreServer::model_metadata)
      .def("model_config", &CoreServer::model_config)
      .def("model_statistics", &CoreServer::model_statistics)
      .def("model_index", &CoreServer::model_index)
      .def("poll_model_repository", &CoreServer::poll_model_repository)
      .def("load_model", &CoreServer::load_model, "name"_a, "config"_a.none(), "files"_a,
           nb::sig("def load_model(self, name: str, config: str | None, files: dict[str, bytes]) "
                   "-> None"))
      .def("unload_model", &CoreServer::unload_model)
      .def("metrics", &CoreServer::metrics)
      .def("set_stubs", &CoreServer::set_stubs, "running"_a,
           nb::sig("def set_stubs(self, running: dict[str, tuple[int, list[str]]]) -> None"),
           "The stubs that run now: of each instance its process, and the models that use it.")
      .def("unhealthy_stubs", &CoreServer::unhealthy_stubs,
           nb::sig("def unhealthy_stubs(self) -> dict[str, bool]"),
           "The instances whose stub Triton calls unhealthy and that have no other process so far; "
           "true: it was alive, and was killed if its process is known.")
      .def_prop_ro("response_fd", &CoreServer::response_fd,
                   "Readable when drain() has something to do.")
      .def("drain", &CoreServer::drain,
           "Write the text of relayed streams, and complete the futures of those that wait and "
           "have responses.")
      .def(
          "infer",
          [](const CoreServer& self, std::string model, int64_t version, nb::dict inputs,
             std::string request_id, uint64_t priority, uint64_t timeout_us, nb::object parameters,
             nb::object sequence, nb::object outputs, RequestTrace* trace) {
            return self.infer_async({std::move(model), version, std::move(inputs),
                                     std::move(request_id), priority, timeout_us,
                                     std::move(parameters), std::move(sequence), std::move(outputs),
                                     trace});
          },
          "model"_a, "version"_a, "inputs"_a, "request_id"_a, "priority"_a, "timeout_us"_a,
          "parameters"_a.none(), "sequence"_a.none(), "outputs"_a, "trace"_a.none() = nb::none(),
          nb::sig("def infer(self, model: str, version: int, inputs: dict[str, typing.Any], "
                  "request_id: str, "
                  "priority: int, timeout_us: int, parameters: dict[str, typing.Any] | None, "
                  "sequence: tuple[int | str, bool, bool] | None, "
                  "outputs: Sequence[tuple[str, int | None, typing.Any]], trace: RequestTrace | "
                  "None = None) -> ResponseStream"));
}

}  // namespace triton
