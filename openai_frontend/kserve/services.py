"""The services that answer requests of the protocol, over HTTP and over gRPC."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openai_frontend.kserve.forwarded_headers import ForwardedHeaders
from openai_frontend.kserve.inference import Inference
from openai_frontend.kserve.log_settings import LogSettings
from openai_frontend.kserve.models import Core
from openai_frontend.kserve.repository import Repository
from openai_frontend.kserve.shared_memory import SharedMemory
from openai_frontend.kserve.trace_file_settings import TraceFileSettings
from openai_frontend.kserve.trace_settings import TraceSettings
from openai_frontend.serving.request.field_policy import FieldPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class KServeServices:
    """One object for all protocols, so that they share limits and state."""

    core: Core
    inference: Inference
    repository: Repository
    policy: FieldPolicy  # for unknown fields
    is_ready: Callable[[], bool]
    forwarded_headers: ForwardedHeaders  # of HTTP
    log_settings: LogSettings
    trace_settings: TraceSettings | TraceFileSettings
    shared_memory: SharedMemory

    @property
    def extensions(self) -> Sequence[str]:
        """Extensions of the protocol besides those that the core reports."""
        return ["system_shared_memory"] if self.shared_memory.enabled else []
