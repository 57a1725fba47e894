#include "server_options.h"

#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "error.h"

namespace triton {

namespace nb = nanobind;
using nb::literals::operator""_a;

Options::Options() {
  if (server_api.ServerOptionsNew == nullptr)
    throw std::runtime_error("no Triton library is loaded");
  check(server_api.ServerOptionsNew(&options_));
}
Options::~Options() { ignore(server_api.ServerOptionsDelete(options_)); }

namespace {

// A setter of the C API as a method: strings go as C strings, everything else as it is.
template <auto Function, typename Value>
void set(Options& self, Value value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    check((server_api.*Function)(self.get(), value.c_str()));
  } else {
    check((server_api.*Function)(self.get(), value));
  }
}

template <typename Enum, auto Function>
void set_enum(Options& self, int value) {
  check((server_api.*Function)(self.get(), static_cast<Enum>(value)));
}

template <auto Function>
void set_triple(Options& self, const std::string& scope, const std::string& setting,
                const std::string& value) {
  check((server_api.*Function)(self.get(), scope.c_str(), setting.c_str(), value.c_str()));
}

void bind_models(nb::class_<Options>& options) {
  using Api = ServerApi;
  options.def("server_id", &set<&Api::ServerOptionsSetServerId, std::string>)
      .def("model_repository", &set<&Api::ServerOptionsSetModelRepositoryPath, std::string>)
      .def("model_control_mode",
           &set_enum<ModelControlMode, &Api::ServerOptionsSetModelControlMode>)
      .def("startup_model", &set<&Api::ServerOptionsSetStartupModel, std::string>)
      .def("strict_model_config", &set<&Api::ServerOptionsSetStrictModelConfig, bool>)
      .def("model_config_name", &set<&Api::ServerOptionsSetModelConfigName, std::string>)
      .def("model_namespacing", &set<&Api::ServerOptionsSetModelNamespacing, bool>)
      .def("model_load_thread_count", &set<&Api::ServerOptionsSetModelLoadThreadCount, unsigned>)
      .def("model_load_retry_count", &set<&Api::ServerOptionsSetModelLoadRetryCount, unsigned>)
      .def("model_load_device_limit",
           [](Options& self, int kind, int device, double fraction) {
             check(server_api.ServerOptionsSetModelLoadDeviceLimit(
                 self.get(), static_cast<InstanceGroupKind>(kind), device, fraction));
           })
      .def("backend_directory", &set<&Api::ServerOptionsSetBackendDirectory, std::string>)
      .def("backend_config", &set_triple<&Api::ServerOptionsSetBackendConfig>)
      .def("repo_agent_directory", &set<&Api::ServerOptionsSetRepoAgentDirectory, std::string>)
      .def("host_policy", &set_triple<&Api::ServerOptionsSetHostPolicy>);
}

void bind_resources(nb::class_<Options>& options) {
  using Api = ServerApi;
  options.def("rate_limiter_mode", &set_enum<RateLimitMode, &Api::ServerOptionsSetRateLimiterMode>)
      .def("rate_limiter_resource",
           [](Options& self, const std::string& name, size_t count, int device) {
             check(server_api.ServerOptionsAddRateLimiterResource(self.get(), name.c_str(), count,
                                                                  device));
           })
      .def("pinned_memory_pool_bytes",
           &set<&Api::ServerOptionsSetPinnedMemoryPoolByteSize, uint64_t>)
      .def("cuda_memory_pool_bytes",
           [](Options& self, int device, uint64_t bytes) {
             check(server_api.ServerOptionsSetCudaMemoryPoolByteSize(self.get(), device, bytes));
           })
      .def("cuda_virtual_address_bytes",
           [](Options& self, int device, size_t bytes) {
             check(server_api.ServerOptionsSetCudaVirtualAddressSize(self.get(), device, bytes));
           })
      .def("min_supported_compute_capability",
           &set<&Api::ServerOptionsSetMinSupportedComputeCapability, double>)
      .def("buffer_manager_thread_count",
           &set<&Api::ServerOptionsSetBufferManagerThreadCount, unsigned>)
      .def("enable_peer_access", &set<&Api::ServerOptionsSetEnablePeerAccess, bool>)
      .def("cache_config",
           [](Options& self, const std::string& cache, const std::string& json) {
             check(server_api.ServerOptionsSetCacheConfig(self.get(), cache.c_str(), json.c_str()));
           })
      .def("cache_directory", &set<&Api::ServerOptionsSetCacheDirectory, std::string>);
}

void bind_operation(nb::class_<Options>& options) {
  using Api = ServerApi;
  options.def("exit_on_error", &set<&Api::ServerOptionsSetExitOnError, bool>)
      .def("strict_readiness", &set<&Api::ServerOptionsSetStrictReadiness, bool>)
      .def("exit_timeout_s", &set<&Api::ServerOptionsSetExitTimeout, unsigned>)
      .def("log_file", &set<&Api::ServerOptionsSetLogFile, std::string>)
      .def("log_info", &set<&Api::ServerOptionsSetLogInfo, bool>)
      .def("log_warn", &set<&Api::ServerOptionsSetLogWarn, bool>)
      .def("log_error", &set<&Api::ServerOptionsSetLogError, bool>)
      .def("log_format", &set_enum<LogFormat, &Api::ServerOptionsSetLogFormat>)
      .def("log_verbose", &set<&Api::ServerOptionsSetLogVerbose, int>)
      .def("metrics", &set<&Api::ServerOptionsSetMetrics, bool>)
      .def("gpu_metrics", &set<&Api::ServerOptionsSetGpuMetrics, bool>)
      .def("cpu_metrics", &set<&Api::ServerOptionsSetCpuMetrics, bool>)
      .def("metrics_interval_ms", &set<&Api::ServerOptionsSetMetricsInterval, uint64_t>)
      .def("metrics_config", &set_triple<&Api::ServerOptionsSetMetricsConfig>);
}

}  // namespace

void bind_options(nb::module_& module) {
  nb::class_<Options> options(module, "ServerOptions", "Each method sets one option of the core.");
  options.def(nb::init<>());
  bind_models(options);
  bind_resources(options);
  bind_operation(options);
}

}  // namespace triton
