"""The groups of settings of the Triton core. `settings.py` joins them with the gateway's."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from openai_frontend.config.types import (
    SECRET,
    Arguments,
    BytesByDevice,
    FractionByDevice,
    ModelNames,
    Names,
    OptionsByModel,
    Paths,
    RateLimiterResources,
    ScopedSettings,
    TritonSettings,
)


class Models(BaseModel):
    """Models"""

    model_repository: Paths = Field(
        default=[Path("model_repository")], description="Folder with models; repeatable."
    )
    served_model_name: ModelNames = Field(
        default=[],
        description="Name of the model of `serve MODEL` instead of its own; repeatable. Requests "
        "may use each name.",
    )
    engine_arg: Arguments = Field(
        default={},
        description="vLLM engine argument for the model of `serve MODEL`, such as "
        "max_model_len=8192. The value is JSON or text; repeatable.",
        json_schema_extra=SECRET,  # hf_token is one
    )
    model_control_mode: Literal["none", "poll", "explicit"] = Field(
        default="none",
        description="Load all models at start (none), follow changes of the repository (poll), "
        "or load only named models (explicit).",
    )
    load_model: Names = Field(
        default=["*"],
        description="Model to load at start, or '*' for all; repeatable. Values other than '*' "
        "require mode explicit.",
    )
    enable_model_management: bool = Field(
        default=False, description="Let clients load and unload models; requires mode explicit."
    )
    allow_model_override: bool = Field(
        default=False,
        description="Let clients that load a model through KServe's protocol send its config and "
        "files. Such clients can run code in the server.",
    )
    load_on_demand: bool = Field(
        default=False,
        description="Load a model at the first request for it; requires mode explicit. At start, "
        "load the models named by `load_model` ('*' is ignored).",
    )
    max_loaded_models: int | None = Field(
        default=None,
        ge=1,
        description="Maximum loaded models with load_on_demand. The least recently used ones are "
        "unloaded.",
    )
    max_model_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Memory budget for models with load_on_demand. A model counts with its "
        "option `memory_bytes`, or with the growth of the processes' main memory during its load.",
    )
    model_load_timeout_s: float = Field(
        default=300.0, gt=0, description="Seconds that a request waits for its model to load."
    )
    model_load_backoff_s: float = Field(
        default=10.0,
        ge=0,
        description="Seconds after a failed load on demand during which requests for the model "
        "get the error; the next request after that tries again.",
    )
    model_option: OptionsByModel = Field(
        default={},
        description="Per-model option. Overrides the model's openai_frontend.yaml; for the model "
        "`*` it sets defaults that the file overrides (docs/models.md).",
    )
    lora_poll_interval_s: float = Field(
        default=5.0,
        gt=0,
        description="Seconds between scans of the LoRA adapter folders (docs/lora.md).",
    )
    repository_poll_s: float = Field(
        default=15.0,
        gt=0,
        description="Seconds between scans of the model repository in mode poll.",
    )
    strict_model_config: bool = Field(
        default=False, description="Reject models whose config.pbtxt is incomplete."
    )
    model_config_name: str | None = Field(
        default=None, description="Name of the config to use from each model's `configs` folder."
    )
    model_namespacing: bool = Field(
        default=False, description="Allow the same model name in several repositories."
    )
    model_load_thread_count: int | None = Field(
        default=None, ge=1, description="Maximum models that load in parallel."
    )
    model_load_retry_count: int | None = Field(
        default=None, ge=0, description="Retries for a model that fails to load."
    )
    model_load_gpu_limit: FractionByDevice = Field(
        default={},
        description="Fraction (0 to 1) of a GPU's memory above which no model is loaded.",
    )

    @field_validator("load_on_demand")
    @classmethod
    def _needs_explicit_mode(cls, enabled: bool, info: ValidationInfo) -> bool:
        if enabled and info.data.get("model_control_mode") != "explicit":
            raise ValueError("requires model_control_mode: explicit")
        return enabled


class TritonCore(BaseModel):
    """Triton core"""

    triton_library: Path | None = Field(
        default=None,
        description="Path of libtritonserver.so; found automatically in the container images and "
        "the wheel.",
    )
    server_id: str = Field(
        default="openai-frontend", description="Server name that Triton reports."
    )
    strict_readiness: bool = Field(
        default=True, description="Report ready only while every loaded model is ready."
    )
    exit_timeout_s: int = Field(
        default=30, ge=0, description="Seconds that models may take to stop at shutdown."
    )
    enable_peer_access: bool | None = Field(
        default=None, description="Let GPUs access each other's memory."
    )
    min_supported_compute_capability: float | None = Field(
        default=None, description="Ignore GPUs below this CUDA compute capability."
    )
    host_policy: ScopedSettings = Field(
        default={},
        description="Setting of a host policy, such as CPU cores or a NUMA node; repeatable.",
    )


class Backends(BaseModel):
    """Backends"""

    backend_directory: Path | None = Field(
        default=None, description="Folder with Triton backends, in addition to the in-process one."
    )
    backend_config: TritonSettings = Field(
        default={}, description="Setting of a backend, or of all without NAME; repeatable."
    )
    repo_agent_directory: Path | None = Field(
        default=None, description="Folder with Triton's repository agents."
    )


class MemoryAndRateLimiter(BaseModel):
    """Memory and rate limiter"""

    pinned_memory_pool_bytes: int | None = Field(
        default=None, ge=0, description="Bytes of pinned host memory for GPU transfers."
    )
    cuda_memory_pool_bytes: BytesByDevice = Field(
        default={}, description="Bytes of Triton's memory pool on a GPU; repeatable."
    )
    cuda_virtual_address_bytes: BytesByDevice = Field(
        default={},
        description="Bytes of virtual address space on a GPU for growable state; repeatable.",
    )
    buffer_manager_thread_count: int | None = Field(
        default=None, ge=0, description="Threads that copy tensors."
    )
    rate_limiter_mode: Literal["off", "execution_count"] | None = Field(
        default=None,
        description="How model instances share the resources of rate_limiter_resource.",
    )
    rate_limiter_resource: RateLimiterResources = Field(
        default=[], description="Number of copies of a rate limiter resource; repeatable."
    )


class Cache(BaseModel):
    """Response cache"""

    cache_config: ScopedSettings = Field(
        default={},
        description="Setting of the response cache, such as local:size=1048576 (bytes); "
        "repeatable.",
    )
    cache_directory: Path | None = Field(
        default=None,
        description="Folder with Triton's cache libraries. Default: the core's, in the container "
        "images and the wheel.",
    )


class CoreLog(BaseModel):
    """Triton log"""

    triton_log_info: bool = Field(default=False, description="Log Triton's info messages.")
    triton_log_warn: bool = Field(default=True, description="Log Triton's warnings.")
    triton_log_error: bool = Field(default=True, description="Log Triton's errors.")
    triton_log_verbose: int = Field(
        default=0, ge=0, description="Level of Triton's verbose log; 0 disables."
    )
    triton_log_file: Path | None = Field(
        default=None, description="File for Triton's log instead of stderr."
    )
    triton_log_format: Literal["default", "ISO8601"] | None = Field(
        default=None, description="Time format of Triton's log."
    )


class Metrics(BaseModel):
    """Metrics"""

    metrics: bool = Field(default=True, description="Collect Triton's metrics.")
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Additional port that serves only /metrics, like Triton's port 8002. The "
        "main port serves it too.",
    )
    gpu_metrics: bool | None = Field(default=None, description="Collect GPU metrics.")
    cpu_metrics: bool | None = Field(default=None, description="Collect CPU metrics.")
    metrics_interval_ms: int | None = Field(
        default=None, ge=1, description="Milliseconds between samples of GPU and CPU metrics."
    )
    metrics_config: TritonSettings = Field(
        default={},
        description="Setting of Triton's metrics, such as summary_latencies=true; repeatable.",
    )
