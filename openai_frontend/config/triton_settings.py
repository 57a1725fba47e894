"""The settings of the Triton core, in groups; `settings.py` joins them with the gateway's own."""

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
)


class Models(BaseModel):
    """Models"""

    model_repository: Paths = Field(
        default=[Path("model_repository")], description="Folder with models; may be given again."
    )
    served_model_name: ModelNames = Field(
        default=[],
        description="Name of the model of `serve MODEL`, instead of its own; may be given again. "
        "Requests may use each name.",
    )
    engine_arg: Arguments = Field(
        default={},
        description="Engine argument of vLLM for the model of `serve MODEL`, such as "
        "max_model_len=8192; the value is JSON or text; may be given again.",
        json_schema_extra=SECRET,  # hf_token is one
    )
    model_control_mode: Literal["none", "poll", "explicit"] = Field(
        default="none",
        description="Load all models at start, follow the folder, or load the named ones alone.",
    )
    load_model: Names = Field(
        default=["*"],
        description="Model to load at start, '*' for all of them; other values need the mode "
        "explicit.",
    )
    enable_model_management: bool = Field(
        default=False, description="Let clients load and unload models, where the mode is explicit."
    )
    allow_model_override: bool = Field(
        default=False,
        description="Let clients who load a model by KServe's protocol send its config and files: "
        "whoever may do that can run code in the server.",
    )
    load_on_demand: bool = Field(
        default=False,
        description="Load a model when a request asks for it, where the mode is explicit; at start "
        "those that `load_model` names, but not '*'.",
    )
    max_loaded_models: int | None = Field(
        default=None,
        ge=1,
        description="Models at a time, where they are loaded on demand; those that were not used "
        "for longest make room.",
    )
    max_model_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Memory for models, where they are loaded on demand: as their options say "
        "(`memory_bytes`), or else as their load added to the processes' main memory.",
    )
    model_load_timeout_s: float = Field(
        default=300.0, gt=0, description="Seconds that a request waits for its model to be loaded."
    )
    model_load_backoff_s: float = Field(
        default=10.0,
        ge=0,
        description="Seconds after a load on demand that failed in which requests are refused with "
        "its reason; after that the next one tries again.",
    )
    model_option: OptionsByModel = Field(
        default={},
        description="What a model's openai_frontend.yaml may say (docs/models.md), and goes before "
        "it; of the model `*` for every model, which goes behind it.",
    )
    lora_poll_interval_s: float = Field(
        default=5.0,
        gt=0,
        description="Seconds between two looks at the folders of LoRA adapters (docs/lora.md).",
    )
    repository_poll_s: float = Field(
        default=15.0, gt=0, description="Seconds between two looks at the folder, in mode poll."
    )
    strict_model_config: bool = Field(
        default=False, description="Refuse models whose config.pbtxt is not complete."
    )
    model_config_name: str | None = Field(
        default=None, description="Name of the config to use in each model's folder configs."
    )
    model_namespacing: bool = Field(
        default=False, description="Allow the same model name in several repositories."
    )
    model_load_thread_count: int | None = Field(
        default=None, ge=1, description="Models that load at the same time."
    )
    model_load_retry_count: int | None = Field(
        default=None, ge=0, description="Further attempts at a model that does not load."
    )
    model_load_gpu_limit: FractionByDevice = Field(
        default={}, description="Share of a GPU's memory (0 to 1) beyond which no model loads."
    )

    @field_validator("load_on_demand")
    @classmethod
    def _needs_explicit_mode(cls, wanted: bool, info: ValidationInfo) -> bool:
        if wanted and info.data.get("model_control_mode") != "explicit":
            raise ValueError("models are loaded on demand where model_control_mode is explicit")
        return wanted


class Core(BaseModel):
    """Triton core"""

    triton_library: Path | None = Field(
        default=None, description="Path of libtritonserver.so; found by itself in images and wheel."
    )
    server_id: str = Field(default="openai-frontend", description="Name of the server in Triton.")
    strict_readiness: bool = Field(
        default=True, description="Ready only while every loaded model is ready."
    )
    exit_timeout_s: int = Field(
        default=30, ge=0, description="Seconds that models have to end when the server stops."
    )
    enable_peer_access: bool | None = Field(
        default=None, description="Let GPUs read each other's memory."
    )
    min_supported_compute_capability: float | None = Field(
        default=None, description="GPUs below this CUDA compute capability are not used."
    )
    host_policy: ScopedSettings = Field(
        default={}, description="Setting of a host policy, such as CPU cores or a NUMA node."
    )


class Backends(BaseModel):
    """Backends"""

    backend_directory: Path | None = Field(
        default=None, description="Folder with Triton's backends beside our in-process one."
    )
    backend_config: ScopedSettings = Field(
        default={}, description="Setting of a backend; may be given again."
    )
    repo_agent_directory: Path | None = Field(
        default=None, description="Folder with Triton's repository agents."
    )


class Resources(BaseModel):
    """Memory and rate limits"""

    pinned_memory_pool_bytes: int | None = Field(
        default=None, ge=0, description="Bytes of pinned host memory for transfers to GPUs."
    )
    cuda_memory_pool_bytes: BytesByDevice = Field(
        default={}, description="Bytes of memory that Triton takes on a GPU."
    )
    cuda_virtual_address_bytes: BytesByDevice = Field(
        default={}, description="Bytes of address space on a GPU for growable state."
    )
    buffer_manager_thread_count: int | None = Field(
        default=None, ge=0, description="Threads that copy tensors."
    )
    rate_limiter_mode: Literal["off", "execution_count"] | None = Field(
        default=None, description="How instances of models share the resources below."
    )
    rate_limiter_resource: RateLimiterResources = Field(
        default=[], description="Count of a resource; may be given again."
    )


class Cache(BaseModel):
    """Response cache"""

    cache_config: ScopedSettings = Field(
        default={}, description="Setting of a cache, such as local:size=1048576 (bytes)."
    )
    cache_directory: Path | None = Field(
        default=None, description="Folder with Triton's cache libraries."
    )


class CoreLog(BaseModel):
    """Triton's log"""

    triton_log_info: bool = Field(default=False, description="Log Triton's informational lines.")
    triton_log_warn: bool = Field(default=True, description="Log Triton's warnings.")
    triton_log_error: bool = Field(default=True, description="Log Triton's errors.")
    triton_log_verbose: int = Field(
        default=0, ge=0, description="Level of Triton's verbose log; 0 is off."
    )
    triton_log_file: Path | None = Field(
        default=None, description="File for Triton's log instead of standard error."
    )
    triton_log_format: Literal["default", "ISO8601"] | None = Field(
        default=None, description="Form of the time in Triton's log."
    )


class Metrics(BaseModel):
    """Metrics"""

    metrics: bool = Field(default=True, description="Collect Triton's metrics.")
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="A second port that has /metrics alone, as Triton's 8002; the first one has it "
        "too.",
    )
    gpu_metrics: bool | None = Field(default=None, description="Collect metrics of GPUs.")
    cpu_metrics: bool | None = Field(default=None, description="Collect metrics of the CPU.")
    metrics_interval_ms: int | None = Field(
        default=None, ge=1, description="Milliseconds between two looks at GPU and CPU."
    )
    metrics_config: ScopedSettings = Field(
        default={}, description="Setting of Triton's metrics, such as histograms or summaries."
    )
