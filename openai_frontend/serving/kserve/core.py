"""What KServe's endpoints need of the Triton core, under the core's own names."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from openai_frontend.contracts.kserve.datatypes import TensorInput


class Response(Protocol):
    """One response to a request."""

    @property
    def final(self) -> bool:
        """True on the last."""

    @property
    def names(self) -> list[str]:
        """The outputs that it has."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What the model says beside its outputs."""

    def tensor(self, name: str, /) -> Any:
        """An output as a buffer."""


class Responses(Protocol):
    """The responses of a request in flight, in bursts."""

    def __aiter__(self) -> AsyncIterator[Sequence[Response]]: ...

    def cancel(self) -> None:
        """Ends the request; legal at any time."""


class Index(Protocol):
    """A line of the repository's index."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Core(Protocol):
    """The running server. Its questions raise GatewayErrors in the core's own words."""

    def is_live(self) -> bool: ...
    def metadata(self) -> dict[str, Any]: ...
    def model_is_ready(self, name: str, version: int = -1) -> bool: ...
    def model_is_decoupled(self, name: str, version: int = -1) -> bool: ...
    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]: ...
    def model_config(self, name: str, version: int = -1) -> dict[str, Any]: ...
    def model_statistics(self, name: str = "", version: int = -1) -> dict[str, Any]: ...
    def model_index(self) -> Sequence[Index]: ...
    def infer(  # noqa: PLR0913  an inference request has this many parts
        self,
        model_name: str,
        inputs: Mapping[str, TensorInput],
        *,
        version: int = -1,
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
        parameters: Mapping[str, str | int | bool | float] | None = None,
        outputs: Sequence[str] = (),
    ) -> Responses: ...
