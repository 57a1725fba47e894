"""The groups of settings of the Triton core. `settings.py` joins them with the gateway's."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from openai_frontend.config.types import (
    SECRET,
    Arguments,
    ModelNames,
    Names,
    OptionsByModel,
    Repositories,
    ScopedSettings,
    TritonOptions,
    TritonSettings,
)


class Models(BaseModel):
    """Models"""

    model_repository: Repositories = Field(
        default=[Path("model_repository")],
        description="Folder with models, or a bucket with them: s3://, gs:// or as:// "
        "(docs/object-storage.md); repeatable.",
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
        default=300.0,
        gt=0,
        description="Seconds that the load of a model may wait for room. Requests for the model "
        "wait in the queue meanwhile, at most for `queue_timeout_s`.",
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
    strict_readiness: bool = Field(
        default=True, description="Report ready only while every loaded model is ready."
    )
    exit_timeout_s: int = Field(
        default=30, ge=0, description="Seconds that models may take to stop at shutdown."
    )
    backend_directory: Path | None = Field(
        default=None, description="Folder with Triton backends, in addition to the in-process one."
    )
    backend_config: TritonSettings = Field(
        default={}, description="Setting of a backend, or of all without NAME; repeatable."
    )
    cache_config: ScopedSettings = Field(
        default={},
        description="Setting of the response cache, such as local:size=1048576 (bytes); "
        "repeatable.",
    )
    triton_option: TritonOptions = Field(
        default={},
        description="Option of Triton's core, named as tritonserver's flag, such as log-verbose=1; "
        "repeatable (docs/settings.md lists the options).",
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
    metrics_config: TritonSettings = Field(
        default={},
        description="Setting of Triton's metrics, such as summary_latencies=true; repeatable.",
    )
