"""The model of a KServe request: address, permission, use and slot. No HTTP, no tensor bytes."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from openai_frontend.admission.queue import (
    NO_QUEUE,
    ConcurrencyLimits,
    TritonQueue,
    triton_queue,
)
from openai_frontend.auth.api_keys import Principal
from openai_frontend.errors import InvalidRequest, ModelNotFound, NotPermitted
from openai_frontend.infer_options import DEFAULT_OPTIONS, InferOptions
from openai_frontend.kserve.datatypes import TensorInput
from openai_frontend.kserve.parameters import RequestOptions
from openai_frontend.prefix_cache.salts import CacheSalts
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.authorized_models import allows, check_allowed
from openai_frontend.serving.admission.permit import Admission

# Triton's model names are folder names. Other names are rejected without a lookup.
_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]{1,255}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
LATEST = -1


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """A model and its version."""

    name: str
    version: int = LATEST


def model_address(name: str, version: str | None = None) -> ModelAddress:
    """Raises ModelNotFound or InvalidRequest if the name or version cannot exist."""
    if _NAME.fullmatch(name) is None:
        raise ModelNotFound(f"invalid model name {name[:64]!r}", param="model")
    if version is None:
        return ModelAddress(name)
    if _VERSION.fullmatch(version) is None:
        message = f"invalid model version {version[:64]!r}: must be an integer above 0"
        raise InvalidRequest(message, param="version")
    return ModelAddress(name, int(version))


def check_visible(principal: Principal | None, model: ModelAddress) -> ModelAddress:
    """Raises ModelHidden if the key does not allow the model."""
    check_allowed(principal, model.name)
    return model


def check_inference(principal: Principal | None, model: ModelAddress) -> ModelAddress:
    """Tensors have no token counts, so keys with token limits work on /v1 only."""
    if principal is None:
        return check_visible(None, model)
    key = principal.key
    if principal.rate_limiter.limits_tokens or key.isolate_prefix_cache or key.priority:
        message = (
            f"Key '{key.name}' has a token limit, a priority or an isolated prefix cache, "
            "which only /v1 supports. Use another key for /v2."
        )
        raise NotPermitted(message)
    return check_visible(principal, model)


def inference_model(
    context: RequestContext, core: "Core", name: str, version: str | None
) -> ModelAddress:
    """The model to run; recorded for the metrics if it is ready.

    Raises if the name is invalid or the key does not allow it.
    """
    model = check_inference(context.principal, model_address(name, version))
    if core.model_is_ready(model.name, model.version):
        context.model = context.model_name = model.name
    return model


class CoreResponse(Protocol):
    """One response to a request."""

    @property
    def final(self) -> bool:
        """True on the last response."""

    @property
    def names(self) -> list[str]:
        """Names of its outputs."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Values that the model reports besides its outputs."""

    def tensor(self, name: str, /) -> Any:
        """An output as a buffer."""

    def label(self, name: str, index: int, /) -> str | None:
        """The label of an output's class, if the request asked for labels."""


class CoreResponses(Protocol):
    """The responses to a running request, in bursts."""

    def __aiter__(self) -> AsyncIterator[Sequence[CoreResponse]]: ...

    def cancel(self) -> None:
        """Cancels the request; allowed at any time."""


class CoreIndexEntry(Protocol):
    """An entry of the repository's index."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Core(Protocol):
    """The running Triton core. Methods raise GatewayErrors with the core's own messages."""

    def is_live(self) -> bool: ...
    def metadata(self) -> dict[str, Any]: ...
    def model_is_ready(self, name: str, version: int = -1) -> bool: ...
    def model_is_decoupled(self, name: str, version: int = -1) -> bool: ...
    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]: ...
    def model_config(self, name: str, version: int = -1) -> dict[str, Any]: ...
    def model_statistics(self, name: str = "", version: int = -1) -> dict[str, Any]: ...
    def model_index(self) -> Sequence[CoreIndexEntry]: ...
    async def refresh_index(self) -> None: ...
    def infer(
        self,
        model_name: str,
        inputs: Mapping[str, TensorInput],
        *,
        version: int = -1,
        request_id: str = "",
        options: InferOptions = DEFAULT_OPTIONS,
    ) -> CoreResponses: ...


# Extensions that the core reports but only Triton's own frontends implement
_UNSUPPORTED_EXTENSIONS = frozenset(
    {
        "cuda_shared_memory",
        "system_shared_memory",
    }
)


def describe_server(core: Core, *extensions: str) -> dict[str, Any]:
    """The core's name, version and extensions, with the protocol's own `extensions`."""
    metadata = core.metadata()
    common = [each for each in metadata["extensions"] if each not in _UNSUPPORTED_EXTENSIONS]
    return {**metadata, "extensions": [*common, *extensions]}


def visible_statistics(principal: Principal | None, core: Core) -> dict[str, Any]:
    """The statistics of all models that the key allows."""
    statistics = core.model_statistics()
    return {**statistics, "model_stats": visible_entries(principal, statistics["model_stats"])}


def visible_entries(
    principal: Principal | None, entries: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The entries, by `name`, of models that the key allows."""
    return [entry for entry in entries if allows(principal, entry["name"])]


UseModel = Callable[[str], AbstractAsyncContextManager[Any]]
LimitsFor = Callable[[str], ConcurrencyLimits]


@dataclass(frozen=True, slots=True)
class _LimitedModel:
    """A model, as far as the queue for its slots needs it."""

    model_name: str
    concurrency_limits: ConcurrencyLimits


class ModelAdmission:
    """Keeps models loaded for requests and limits how many requests a model runs.

    Use `async with admission.use(context, model):` around all use of a model for a request and
    `admission.slot` around the inference.
    """

    def __init__(
        self,
        core: Core,
        use: UseModel,
        admission: Admission,
        limits_for: LimitsFor,
        cache_salts: CacheSalts,
    ) -> None:
        """`use` remembers every name it gets, so it gets only names of existing models."""
        self.cache_salts = cache_salts
        self._core = core
        self._use = use
        self._admission = admission
        self._limits_for = limits_for

    @asynccontextmanager
    async def use(self, context: RequestContext, model: ModelAddress) -> AsyncGenerator[None, None]:
        """Keeps the model loaded meanwhile; loads it if needed.

        Raises ModelNotFound if no repository has it, QueueFull if its queue is full.
        """
        if not self._core.model_is_ready(model.name) and not self._is_in_a_repository(model.name):
            await self._core.refresh_index()  # the folder may be newer
            if not self._is_in_a_repository(model.name):
                raise ModelNotFound(f"model '{model.name}' not found", param="model")
        self._admission.check(context, self._limited(model))
        async with self._use(model.name):
            yield

    @asynccontextmanager
    async def slot(
        self, context: RequestContext, model: ModelAddress, options: RequestOptions
    ) -> AsyncGenerator[RequestOptions, None]:
        """Waits for a slot. Yields the options with what is left of the request's timeout, and no
        better priority than the key's: 0, as only such keys may send tensors.
        """
        waits_us = options.timeout_us
        queue = self._queue(model) if options.priority else NO_QUEUE
        priority = queue.priority(options.priority)
        if context.principal is not None and priority < 0:
            priority, options = 0, replace(options, priority=queue.default_level)
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        timeout_s = waits_us / 1e6 if waits_us else None
        async with self._admission.wait(
            context, self._limited(model), priority=priority, timeout_s=timeout_s
        ):
            waited_us = int((clock() - begun_s) * 1e6)
            yield replace(options, timeout_us=max(1, waits_us - waited_us) if waits_us else 0)

    def _limited(self, model: ModelAddress) -> "_LimitedModel":
        return _LimitedModel(model.name, self._limits_for(model.name))

    def _queue(self, model: ModelAddress) -> TritonQueue:
        return triton_queue(self._core.model_config(model.name, model.version))

    def _is_in_a_repository(self, name: str) -> bool:
        return any(line.name == name for line in self._core.model_index())


T = TypeVar("T")

_INLINE_BYTES = 16 * 1024  # 0.5 ms if every two bytes are an element of a JSON array


async def offload(work: Callable[[], T], *, byte_size: int) -> T:
    """Runs work on tensors inline if it is short, else in a thread beside the event loop."""
    return work() if byte_size <= _INLINE_BYTES else await asyncio.to_thread(work)
