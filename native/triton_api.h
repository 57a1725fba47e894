// The part of Triton's C API that the gateway calls, declared from the API's documentation
// (include/triton/core/tritonserver.h and tritonbackend.h of triton-inference-server/core,
// API 1.34).
//
// Nothing here links against libtritonserver: the functions are resolved at run time (library.h),
// so that one build serves the library of NVIDIA's images and the one of the PyPI wheel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace triton {

inline constexpr uint32_t kApiMajor = 1;
inline constexpr uint32_t kApiMinMinor = 33;  // MetricNewWithArgs and histograms came with 1.33

struct Error;
struct Server;
struct ServerOptions;
struct Parameter;
struct Message;
struct Metrics;
struct MetricFamily;
struct Metric;
struct MetricArgs;
struct InferenceRequest;
struct InferenceResponse;
struct InferenceTrace;
struct ResponseAllocator;
struct Backend;
struct BackendAttribute;
struct Model;
struct ModelInstance;
struct Request;  // TRITONBACKEND_Request
struct Input;
struct Output;
struct Response;  // TRITONBACKEND_Response
struct ResponseFactory;

enum class DataType : int32_t {
  kInvalid,
  kBool,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFp16,
  kFp32,
  kFp64,
  kBytes,
  kBf16
};
enum class MemoryType : int32_t { kCpu, kCpuPinned, kGpu };
enum class ParameterType : int32_t { kString, kInt, kBool, kDouble, kBytes };
enum class InstanceGroupKind : int32_t { kAuto, kCpu, kGpu, kModel };
enum class LogFormat : int32_t { kDefault, kIso8601 };
enum class Code : int32_t {
  kUnknown,
  kInternal,
  kNotFound,
  kInvalidArg,
  kUnavailable,
  kUnsupported,
  kAlreadyExists,
  kCancelled
};
enum class ModelControlMode : int32_t { kNone, kPoll, kExplicit };
enum class RateLimitMode : int32_t { kOff, kExecCount };
enum class MetricKind : int32_t { kCounter, kGauge, kHistogram };
enum class MetricFormat : int32_t { kPrometheus };
enum class ArtifactType : int32_t { kFilesystem };
enum class TraceActivityKind : int32_t {};  // 0 request start .. 6 request end; only passed on

inline constexpr uint32_t kResponseFinal = 1;
inline constexpr uint32_t kRequestReleaseAll = 1;
inline constexpr uint32_t kSequenceStart = 1;
inline constexpr uint32_t kSequenceEnd = 2;
inline constexpr uint32_t kTransactionDecoupled = 2;
inline constexpr int32_t kRequestStart = 0;     // the activity
inline constexpr int32_t kTraceTimestamps = 4;  // the level
inline constexpr int32_t kTraceTensors = 8;     // another one

using AllocFn = Error* (*)(ResponseAllocator*, const char* tensor, size_t byte_size, MemoryType,
                           int64_t memory_id, void* userp, void** buffer, void** buffer_userp,
                           MemoryType* actual, int64_t* actual_id);
using BufferReleaseFn = Error* (*)(ResponseAllocator*, void* buffer, void* buffer_userp,
                                   size_t byte_size, MemoryType, int64_t memory_id);
using RequestReleaseFn = void (*)(InferenceRequest*, uint32_t flags, void* userp);
using ResponseCompleteFn = void (*)(InferenceResponse*, uint32_t flags, void* userp);
using TraceActivityFn = void (*)(InferenceTrace*, TraceActivityKind, uint64_t timestamp_ns,
                                 void* userp);
using TraceTensorFn = void (*)(InferenceTrace*, TraceActivityKind, const char* name, DataType,
                               const void* base, size_t byte_size, const int64_t* shape,
                               uint64_t dims, MemoryType, int64_t memory_id, void* userp);
using TraceReleaseFn = void (*)(InferenceTrace*, void* userp);

// X(result, name, arguments), without the TRITONSERVER_ prefix.
// clang-format off
#define TRITON_SERVER_FUNCTIONS(X)                                                                           \
  X(Error*, ApiVersion, (uint32_t* major, uint32_t* minor))                                                  \
  X(Error*, ErrorNew, (Code, const char* message))                                                      \
  X(void, ErrorDelete, (Error*))                                                                             \
  X(Code, ErrorCode, (Error*))                                                                        \
  X(const char*, ErrorMessage, (Error*))                                                                     \
  X(Parameter*, ParameterNew, (const char* name, ParameterType, const void* value))                          \
  X(Parameter*, ParameterBytesNew, (const char* name, const void* base, uint64_t byte_size))                 \
  X(void, ParameterDelete, (Parameter*))                                                                     \
  X(Error*, MessageNewFromSerializedJson, (Message**, const char* base, size_t byte_size))                   \
  X(Error*, MessageDelete, (Message*))                                                                       \
  X(Error*, MessageSerializeToJson, (Message*, const char** base, size_t* byte_size))                        \
  X(Error*, MetricsDelete, (Metrics*))                                                                       \
  X(Error*, MetricsFormatted, (Metrics*, MetricFormat, const char** base, size_t* byte_size))                \
  X(Error*, ResponseAllocatorNew, (ResponseAllocator**, AllocFn, BufferReleaseFn, void* start_fn))           \
  X(Error*, ResponseAllocatorDelete, (ResponseAllocator*))                                                   \
  X(Error*, ServerOptionsNew, (ServerOptions**))                                                             \
  X(Error*, ServerOptionsDelete, (ServerOptions*))                                                           \
  X(Error*, ServerOptionsSetServerId, (ServerOptions*, const char*))                                         \
  X(Error*, ServerOptionsSetModelRepositoryPath, (ServerOptions*, const char*))                              \
  X(Error*, ServerOptionsSetModelControlMode, (ServerOptions*, ModelControlMode))                            \
  X(Error*, ServerOptionsSetStartupModel, (ServerOptions*, const char*))                                     \
  X(Error*, ServerOptionsSetStrictModelConfig, (ServerOptions*, bool))                                       \
  X(Error*, ServerOptionsSetModelConfigName, (ServerOptions*, const char*))                                  \
  X(Error*, ServerOptionsSetRateLimiterMode, (ServerOptions*, RateLimitMode))                                \
  X(Error*, ServerOptionsAddRateLimiterResource, (ServerOptions*, const char* name, size_t count, int device)) \
  X(Error*, ServerOptionsSetPinnedMemoryPoolByteSize, (ServerOptions*, uint64_t))                            \
  X(Error*, ServerOptionsSetCudaMemoryPoolByteSize, (ServerOptions*, int device, uint64_t))                  \
  X(Error*, ServerOptionsSetCudaVirtualAddressSize, (ServerOptions*, int device, size_t))                    \
  X(Error*, ServerOptionsSetCacheConfig, (ServerOptions*, const char* name, const char* json))               \
  X(Error*, ServerOptionsSetCacheDirectory, (ServerOptions*, const char*))                                   \
  X(Error*, ServerOptionsSetMinSupportedComputeCapability, (ServerOptions*, double))                         \
  X(Error*, ServerOptionsSetExitOnError, (ServerOptions*, bool))                                             \
  X(Error*, ServerOptionsSetStrictReadiness, (ServerOptions*, bool))                                         \
  X(Error*, ServerOptionsSetExitTimeout, (ServerOptions*, unsigned seconds))                                 \
  X(Error*, ServerOptionsSetBufferManagerThreadCount, (ServerOptions*, unsigned))                            \
  X(Error*, ServerOptionsSetModelLoadThreadCount, (ServerOptions*, unsigned))                                \
  X(Error*, ServerOptionsSetModelLoadRetryCount, (ServerOptions*, unsigned))                                 \
  X(Error*, ServerOptionsSetModelNamespacing, (ServerOptions*, bool))                                        \
  X(Error*, ServerOptionsSetEnablePeerAccess, (ServerOptions*, bool))                                        \
  X(Error*, ServerOptionsSetLogFile, (ServerOptions*, const char*))                                          \
  X(Error*, ServerOptionsSetLogInfo, (ServerOptions*, bool))                                                 \
  X(Error*, ServerOptionsSetLogWarn, (ServerOptions*, bool))                                                 \
  X(Error*, ServerOptionsSetLogError, (ServerOptions*, bool))                                                \
  X(Error*, ServerOptionsSetLogFormat, (ServerOptions*, LogFormat))                                          \
  X(Error*, ServerOptionsSetLogVerbose, (ServerOptions*, int))                                               \
  X(Error*, ServerOptionsSetMetrics, (ServerOptions*, bool))                                                 \
  X(Error*, ServerOptionsSetGpuMetrics, (ServerOptions*, bool))                                              \
  X(Error*, ServerOptionsSetCpuMetrics, (ServerOptions*, bool))                                              \
  X(Error*, ServerOptionsSetMetricsInterval, (ServerOptions*, uint64_t ms))                                  \
  X(Error*, ServerOptionsSetMetricsConfig, (ServerOptions*, const char*, const char*, const char*))          \
  X(Error*, ServerOptionsSetBackendDirectory, (ServerOptions*, const char*))                                 \
  X(Error*, ServerOptionsSetRepoAgentDirectory, (ServerOptions*, const char*))                               \
  X(Error*, ServerOptionsSetModelLoadDeviceLimit, (ServerOptions*, InstanceGroupKind, int device, double))   \
  X(Error*, ServerOptionsSetBackendConfig, (ServerOptions*, const char*, const char*, const char*))          \
  X(Error*, ServerOptionsSetHostPolicy, (ServerOptions*, const char*, const char*, const char*))             \
  X(Error*, ServerNew, (Server**, ServerOptions*))                                                           \
  X(Error*, ServerDelete, (Server*))                                                                         \
  X(Error*, ServerStop, (Server*))                                                                           \
  X(Error*, ServerIsLive, (Server*, bool*))                                                                  \
  X(Error*, ServerIsReady, (Server*, bool*))                                                                 \
  X(Error*, ServerModelIsReady, (Server*, const char* name, int64_t version, bool*))                         \
  X(Error*, ServerModelTransactionProperties, (Server*, const char*, int64_t, uint32_t* flags, void**))      \
  X(Error*, ServerMetadata, (Server*, Message**))                                                            \
  X(Error*, ServerModelMetadata, (Server*, const char*, int64_t, Message**))                                 \
  X(Error*, ServerModelStatistics, (Server*, const char*, int64_t, Message**))                               \
  X(Error*, ServerModelConfig, (Server*, const char*, int64_t, uint32_t config_version, Message**))          \
  X(Error*, ServerModelIndex, (Server*, uint32_t flags, Message**))                                          \
  X(Error*, ServerPollModelRepository, (Server*))                                                            \
  X(Error*, ServerLoadModelWithParameters, (Server*, const char*, const Parameter**, uint64_t count))        \
  X(Error*, ServerUnloadModel, (Server*, const char*))                                                       \
  X(Error*, ServerMetrics, (Server*, Metrics**))                                                             \
  X(Error*, ServerInferAsync, (Server*, InferenceRequest*, InferenceTrace*))                                 \
  X(Error*, InferenceTraceTensorNew,                                                                         \
    (InferenceTrace**, int32_t level, uint64_t parent_id, TraceActivityFn, TraceTensorFn, TraceReleaseFn,    \
     void* userp))                                                                                           \
  X(Error*, InferenceTraceDelete, (InferenceTrace*))                                                         \
  X(Error*, InferenceTraceId, (InferenceTrace*, uint64_t*))                                                  \
  X(Error*, InferenceTraceParentId, (InferenceTrace*, uint64_t*))                                            \
  X(Error*, InferenceTraceModelName, (InferenceTrace*, const char**))                                        \
  X(Error*, InferenceTraceModelVersion, (InferenceTrace*, int64_t*))                                         \
  X(Error*, InferenceTraceRequestId, (InferenceTrace*, const char**))                                        \
  X(Error*, InferenceTraceSetContext, (InferenceTrace*, const char* json))                                   \
  X(Error*, InferenceRequestNew, (InferenceRequest**, Server*, const char* model, int64_t version))          \
  X(Error*, InferenceRequestDelete, (InferenceRequest*))                                                     \
  X(Error*, InferenceRequestSetId, (InferenceRequest*, const char*))                                         \
  X(Error*, InferenceRequestSetFlags, (InferenceRequest*, uint32_t flags))                                   \
  X(Error*, InferenceRequestSetCorrelationId, (InferenceRequest*, uint64_t))                                 \
  X(Error*, InferenceRequestSetCorrelationIdString, (InferenceRequest*, const char*))                        \
  X(Error*, InferenceRequestCancel, (InferenceRequest*))                                                     \
  X(Error*, InferenceRequestSetPriorityUInt64, (InferenceRequest*, uint64_t))                                \
  X(Error*, InferenceRequestSetTimeoutMicroseconds, (InferenceRequest*, uint64_t))                           \
  X(Error*, InferenceRequestAddInput, (InferenceRequest*, const char*, DataType, const int64_t*, uint64_t))  \
  X(Error*, InferenceRequestAppendInputData,                                                                 \
    (InferenceRequest*, const char*, const void* base, size_t byte_size, MemoryType, int64_t memory_id))     \
  X(Error*, InferenceRequestAddRequestedOutput, (InferenceRequest*, const char*))                            \
  X(Error*, InferenceRequestSetReleaseCallback, (InferenceRequest*, RequestReleaseFn, void* userp))          \
  X(Error*, InferenceRequestSetResponseCallback,                                                             \
    (InferenceRequest*, ResponseAllocator*, void* allocator_userp, ResponseCompleteFn, void* userp))         \
  X(Error*, InferenceRequestSetStringParameter, (InferenceRequest*, const char*, const char*))               \
  X(Error*, InferenceRequestSetIntParameter, (InferenceRequest*, const char*, int64_t))                      \
  X(Error*, InferenceRequestSetBoolParameter, (InferenceRequest*, const char*, bool))                        \
  X(Error*, InferenceRequestSetDoubleParameter, (InferenceRequest*, const char*, double))                    \
  X(Error*, InferenceResponseDelete, (InferenceResponse*))                                                   \
  X(Error*, InferenceResponseError, (InferenceResponse*))                                                    \
  X(Error*, InferenceResponseParameterCount, (InferenceResponse*, uint32_t*))                                \
  X(Error*, InferenceResponseParameter,                                                                      \
    (InferenceResponse*, uint32_t, const char** name, ParameterType*, const void** value))                   \
  X(Error*, InferenceResponseOutputClassificationLabel,                                                      \
    (InferenceResponse*, uint32_t index, size_t class_index, const char** label))                            \
  X(Error*, InferenceResponseOutputCount, (InferenceResponse*, uint32_t*))                                   \
  X(Error*, InferenceResponseOutput,                                                                         \
    (InferenceResponse*, uint32_t, const char** name, DataType*, const int64_t** shape, uint64_t* dims,      \
     const void** base, size_t* byte_size, MemoryType*, int64_t* memory_id, void** userp))                   \
  X(Error*, MetricFamilyNew, (MetricFamily**, MetricKind, const char* name, const char* description))        \
  X(Error*, MetricFamilyDelete, (MetricFamily*))                                                             \
  X(Error*, MetricArgsNew, (MetricArgs**))                                                                   \
  X(Error*, MetricArgsSetHistogram, (MetricArgs*, const double* buckets, uint64_t count))                    \
  X(Error*, MetricArgsDelete, (MetricArgs*))                                                                 \
  X(Error*, MetricNewWithArgs, (Metric**, MetricFamily*, const Parameter** labels, uint64_t, const MetricArgs*)) \
  X(Error*, MetricDelete, (Metric*))                                                                         \
  X(Error*, MetricValue, (Metric*, double*))                                                                 \
  X(Error*, MetricIncrement, (Metric*, double))                                                              \
  X(Error*, MetricSet, (Metric*, double))                                                                    \
  X(Error*, MetricObserve, (Metric*, double))

// X(result, name, arguments), without the TRITONBACKEND_ prefix.
#define TRITON_BACKEND_FUNCTIONS(X)                                                                          \
  X(Error*, BackendAttributeAddPreferredInstanceGroup,                                                       \
    (BackendAttribute*, InstanceGroupKind, uint64_t count, const uint64_t* devices, uint64_t device_count))  \
  X(Error*, ModelName, (Model*, const char**))                                                               \
  X(Error*, ModelVersion, (Model*, uint64_t*))                                                               \
  X(Error*, ModelRepository, (Model*, ArtifactType*, const char** location))                                 \
  X(Error*, ModelConfig, (Model*, uint32_t config_version, Message**))                                       \
  X(Error*, ModelAutoCompleteConfig, (Model*, bool*))                                                        \
  X(Error*, ModelSetConfig, (Model*, uint32_t config_version, Message*))                                     \
  X(Error*, ModelState, (Model*, void**))                                                                    \
  X(Error*, ModelSetState, (Model*, void*))                                                                  \
  X(Error*, ModelInstanceModel, (ModelInstance*, Model**))                                                   \
  X(Error*, ModelInstanceReportStatistics,                                                                   \
    (ModelInstance*, Request*, bool success, uint64_t exec_start_ns, uint64_t compute_start_ns,              \
     uint64_t compute_end_ns, uint64_t exec_end_ns))                                                         \
  X(Error*, ModelInstanceReportBatchStatistics,                                                              \
    (ModelInstance*, uint64_t batch_size, uint64_t exec_start_ns, uint64_t compute_start_ns,                 \
     uint64_t compute_end_ns, uint64_t exec_end_ns))                                                         \
  X(Error*, RequestId, (Request*, const char**))                                                             \
  X(Error*, RequestParameterCount, (Request*, uint32_t*))                                                    \
  X(Error*, RequestParameter, (Request*, uint32_t, const char** key, ParameterType*, const void** value))    \
  X(Error*, RequestInputCount, (Request*, uint32_t*))                                                        \
  X(Error*, RequestInputByIndex, (Request*, uint32_t, Input**))                                              \
  X(Error*, RequestRelease, (Request*, uint32_t flags))                                                      \
  X(Error*, InputProperties,                                                                                 \
    (Input*, const char** name, DataType*, const int64_t** shape, uint32_t* dims, uint64_t* byte_size,       \
     uint32_t* buffer_count))                                                                                \
  X(Error*, InputBuffer, (Input*, uint32_t, const void** base, uint64_t* byte_size, MemoryType*, int64_t*))  \
  X(Error*, ResponseFactoryNew, (ResponseFactory**, Request*))                                               \
  X(Error*, ResponseFactoryDelete, (ResponseFactory*))                                                       \
  X(Error*, ResponseFactoryIsCancelled, (ResponseFactory*, bool*))                                           \
  X(Error*, ResponseFactorySendFlags, (ResponseFactory*, uint32_t))                                          \
  X(Error*, ResponseNewFromFactory, (Response**, ResponseFactory*))                                          \
  X(Error*, ResponseDelete, (Response*))                                                                     \
  X(Error*, ResponseOutput, (Response*, Output**, const char* name, DataType, const int64_t*, uint32_t))     \
  X(Error*, ResponseSetStringParameter, (Response*, const char*, const char*))                               \
  X(Error*, ResponseSend, (Response*, uint32_t flags, Error*))                                               \
  X(Error*, OutputBuffer, (Output*, void**, uint64_t byte_size, MemoryType*, int64_t* memory_id))
// clang-format on

#define TRITON_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
struct ServerApi {
  TRITON_SERVER_FUNCTIONS(TRITON_DECLARE)
};
struct BackendApi {
  TRITON_BACKEND_FUNCTIONS(TRITON_DECLARE)
};
#undef TRITON_DECLARE

extern ServerApi server_api;
extern BackendApi backend_api;

}  // namespace triton
