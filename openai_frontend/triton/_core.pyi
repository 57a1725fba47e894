"""
The Triton core in this process, and the backend whose models are Python engines of this process.
"""

from collections.abc import Callable, Sequence
from typing import Any


class TritonError(RuntimeError):
    pass

def load_library(library: str, siblings: Sequence[str]) -> tuple[int, int]:
    """
    Loads libtritonserver; returns the (major, minor) version of its C API.
    """

def live_counts() -> dict[str, int]:
    """Objects that live now; zero when no request is in flight."""

def relay_counts() -> dict[str, int]:
    """
    Texts that were relayed to clients, and the writes that took them, so far.
    """

def json_member(text: bytes, name: bytes) -> tuple[int, int] | None:
    """
    Where the value of a member of a JSON object begins and ends. None if there is not exactly one, or a key has an escape. Values are skipped, not checked.
    """

class Tensor:
    """
    A tensor's memory, read-only: the buffer protocol shows it flat, without a copy.
    """

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def item(self) -> Any: ...

    def tolist(self) -> list[Any]: ...

class MappedFile:
    """
    A part of a file that other processes map too: a writable buffer. It stays mapped as long as a view of it exists.
    """

    def __init__(self, fd: int, offset: int, size: int) -> None:
        """
        Duplicates the descriptor. Raises ValueError if the file is not regular or too short.
        """

    @property
    def nbytes(self) -> int: ...

    @property
    def intact(self) -> bool:
        """
        False once the file was found to be shorter than the region. An access to what is gone finds zeros, and other processes see nothing of the region any more.
        """

class ServerOptions:
    """Each method sets one option of the core."""

    def __init__(self) -> None: ...

    def server_id(self, arg: str, /) -> None: ...

    def model_repository(self, arg: str, /) -> None: ...

    def model_control_mode(self, arg: int, /) -> None: ...

    def startup_model(self, arg: str, /) -> None: ...

    def strict_model_config(self, arg: bool, /) -> None: ...

    def model_config_name(self, arg: str, /) -> None: ...

    def model_namespacing(self, arg: bool, /) -> None: ...

    def model_load_thread_count(self, arg: int, /) -> None: ...

    def model_load_retry_count(self, arg: int, /) -> None: ...

    def model_load_device_limit(self, arg0: int, arg1: int, arg2: float, /) -> None: ...

    def backend_directory(self, arg: str, /) -> None: ...

    def backend_config(self, arg0: str, arg1: str, arg2: str, /) -> None: ...

    def repo_agent_directory(self, arg: str, /) -> None: ...

    def host_policy(self, arg0: str, arg1: str, arg2: str, /) -> None: ...

    def rate_limiter_mode(self, arg: int, /) -> None: ...

    def rate_limiter_resource(self, arg0: str, arg1: int, arg2: int, /) -> None: ...

    def pinned_memory_pool_bytes(self, arg: int, /) -> None: ...

    def cuda_memory_pool_bytes(self, arg0: int, arg1: int, /) -> None: ...

    def cuda_virtual_address_bytes(self, arg0: int, arg1: int, /) -> None: ...

    def min_supported_compute_capability(self, arg: float, /) -> None: ...

    def buffer_manager_thread_count(self, arg: int, /) -> None: ...

    def enable_peer_access(self, arg: bool, /) -> None: ...

    def cache_config(self, arg0: str, arg1: str, /) -> None: ...

    def cache_directory(self, arg: str, /) -> None: ...

    def exit_on_error(self, arg: bool, /) -> None: ...

    def strict_readiness(self, arg: bool, /) -> None: ...

    def exit_timeout_s(self, arg: int, /) -> None: ...

    def log_file(self, arg: str, /) -> None: ...

    def log_info(self, arg: bool, /) -> None: ...

    def log_warn(self, arg: bool, /) -> None: ...

    def log_error(self, arg: bool, /) -> None: ...

    def log_format(self, arg: int, /) -> None: ...

    def log_verbose(self, arg: int, /) -> None: ...

    def metrics(self, arg: bool, /) -> None: ...

    def gpu_metrics(self, arg: bool, /) -> None: ...

    def cpu_metrics(self, arg: bool, /) -> None: ...

    def metrics_interval_ms(self, arg: int, /) -> None: ...

    def metrics_config(self, arg0: str, arg1: str, arg2: str, /) -> None: ...

class Server:
    """The core. Runs from its construction until stop()."""

    def __init__(self, arg: ServerOptions, /) -> None: ...

    def stop(self) -> None: ...

    def is_live(self) -> bool: ...

    def is_ready(self) -> bool: ...

    def model_is_ready(self, arg0: str, arg1: int, /) -> bool: ...

    def model_is_decoupled(self, arg0: str, arg1: int, /) -> bool: ...

    def metadata(self) -> str: ...

    def model_metadata(self, arg0: str, arg1: int, /) -> str: ...

    def model_config(self, arg0: str, arg1: int, /) -> str: ...

    def model_statistics(self, arg0: str, arg1: int, /) -> str: ...

    def model_index(self, arg: bool, /) -> str: ...

    def poll_model_repository(self) -> None: ...

    def load_model(self, name: str, config: str | None, files: dict[str, bytes]) -> None: ...

    def unload_model(self, arg: str, /) -> None: ...

    def metrics(self) -> str: ...

    def set_stubs(self, running: dict[str, tuple[int, list[str]]]) -> None:
        """
        The stubs that run now: of each instance its process, and the models that use it.
        """

    def unhealthy_stubs(self) -> dict[str, bool]:
        """
        The instances whose stub Triton calls unhealthy and that have no other process so far; true: it was alive, and was killed if its process is known.
        """

    @property
    def response_fd(self) -> int:
        """Readable when drain() has something to do."""

    def drain(self) -> None:
        """
        Write the text of relayed streams, and complete the futures of those that wait and have responses.
        """

    def infer(self, model: str, version: int, inputs: dict[str, Any], request_id: str, priority: int, timeout_us: int, parameters: dict[str, Any] | None, sequence: tuple[int | str, bool, bool] | None, outputs: Sequence[tuple[str, int | None, Any]], trace: RequestTrace | None = None) -> ResponseStream: ...

class MetricFamily:
    """
    A family of metrics: kind (0 counter, 1 gauge, 2 histogram), name, help.
    """

    def __init__(self, arg0: int, arg1: str, arg2: str, /) -> None: ...

class Metric:
    """One metric: its family, labels and, for a histogram, bucket bounds."""

    def __init__(self, family: MetricFamily, labels: dict[str, str], buckets: Sequence[float], /) -> None: ...

    @property
    def value(self) -> float: ...

    def increment(self, arg: float, /) -> None: ...

    def set(self, arg: float, /) -> None: ...

    def observe(self, arg: float, /) -> None: ...

class StreamWriter:
    """Writes the body of one response: see `generation.StreamWriter`."""

    def __init__(self, max_buffer_bytes: int, drop: Callable[[], object]) -> None: ...

    def open(self, write: Callable[[bytes], object], buffered: Callable[[], int], *, fd: int = -1, chunked: bool = True, paused: bool = False) -> None:
        """
        The headers are written: write the body with `write`, or to the socket `fd` while `buffered` is 0.
        """

    def __call__(self, piece: bytes, /) -> bool:
        """True while the client is slow: the piece waits."""

    def pause(self) -> None:
        """The transport's buffer is full."""

    def resume(self) -> None:
        """The transport has room again."""

    def close(self, error: Exception | None = None) -> None:
        """
        Discard what waits and later pieces; with an error, raise it for later pieces.
        """

    @property
    def paused(self) -> bool:
        """Whether the client is slow."""

    @property
    def body_bytes(self) -> int:
        """Bytes written so far, without framing and what waits."""

    @property
    def on_drained(self) -> object:
        """Called when nothing waits any longer."""

    @on_drained.setter
    def on_drained(self, arg: object | None, /) -> None: ...

class RequestTrace:
    """When a request was queued, computed and ended in the core."""

    def __init__(self, context: str, level: int = 4) -> None: ...

    @property
    def ended(self) -> bool:
        """The core reports nothing more about the request."""

    def activities(self) -> list[tuple[int, int, str, int, int, int]]:
        """
        (trace, parent or 0, model, version, activity, nanoseconds of the monotonic clock)
        """

    def tensors(self) -> list[tuple[int, int, str, str, tuple[int, ...], list[Any]]]:
        """
        (trace, activity, name, datatype, shape, elements); no elements if they are too many
        """

    def request_ids(self) -> dict[int, str]:
        """The ids of requests that have one, by trace."""

def add_token(vocabulary: int, token_id: int, before: bytes, after: bytes) -> None:
    """
    The JSON of a token around its log probability, for `ResponseStream.relay_logprobs`.
    """

def run_step(function: Callable[..., object], *arguments: Any) -> object:
    """
    Call a function that sends responses, on the thread of the event loop: their consumers are woken when it returns or raises, not in the loop's next iteration.
    """

class InferenceResponse:
    """One response: its output tensors, or an error."""

    @property
    def final(self) -> bool: ...

    @property
    def relayed(self) -> int:
        """Tokens of a text that has been written to the client already; else 0."""

    @property
    def error(self) -> tuple[int, str] | None:
        """(error code, message), or None"""

    def item(self, name: str, /) -> Any: ...

    def tolist(self, name: str, /) -> list[Any] | None: ...

    def tensor(self, name: str, /) -> Tensor | None: ...

    def label(self, name: str, index: int, /) -> str | None:
        """The label of an output's class, if the request asked for labels."""

    @property
    def names(self) -> list[str]: ...

    @property
    def parameters(self) -> dict[str, Any]: ...

class ResponseStream:
    """The responses of one request in flight."""

    def take(self) -> list[InferenceResponse]:
        """All responses that have come since the last call; maybe none."""

    def cancel(self) -> int | None:
        """
        Asks Triton to end the request. Returns the bytes of inputs that it still holds; None if the last response has come.
        """

    def relay(self, output: str, before: bytes, after: bytes, write: Callable[[bytes], bool], numbers: object | None = None) -> None:
        """
        From now on, write responses that hold this one text and nothing else as frames. Each takes its number from `numbers.next`: it replaces the byte 1 in a constant part.
        """

    def relay_logprobs(self, output: str, before: bytes, between: bytes, after: bytes, vocabulary: int, top: int, write: Callable[[bytes], bool]) -> None:
        """
        From now on, write responses that hold a text and the log probabilities of its tokens as frames: the text between `before` and `between`, `top` alternatives for each token between `between` and `after`. Responses with a token that `add_token` has not added to the vocabulary are not written.
        """

    def relay_segments(self, output: str, write: Callable[[bytes], bool], numbers: object | None = None) -> None:
        """
        From now on, write the text of the segments that `relay_text` and `relay_json` begin, numbered as by `relay`.
        """

    def relay_text(self, around: list[bytes], markers: list[str], room: int) -> bool:
        """
        Write text up to one of the markers as frames: JSON strings between `around`. `room` is how many bytes may come. False if responses wait, which come first.
        """

    def relay_json(self, around: list[bytes], open: str, position: str, room: int) -> bool:
        """
        The same for a JSON value up to its end, of which the brackets are open that `open` closes.
        """

    def resume_relay(self) -> None:
        """The paused writer accepts frames again."""

    def stop_relay(self) -> None:
        """Write no more."""

    @property
    def finished(self) -> bool:
        """The last response has come (and may be untaken)."""

    @property
    def received(self) -> int:
        """Responses that have come so far, relayed ones too."""

    @property
    def waiter(self) -> object:
        """A future that the next drain completes when a response has come."""

    @waiter.setter
    def waiter(self, arg: object | None, /) -> None: ...

    @property
    def release_waiter(self) -> object:
        """
        A future that a drain completes once Triton has released a cancelled request and sent its last response.
        """

    @release_waiter.setter
    def release_waiter(self, arg: object | None, /) -> None: ...

class Execution:
    """
    One request at the in-process backend. End it once: send(final=True), finish() or fail().
    """

    @property
    def request_id(self) -> str: ...

    def inputs(self) -> dict[str, Tensor]:
        """The input tensors by name, copied out of Triton's memory."""

    def parameters(self) -> dict[str, Any]: ...

    def send(self, outputs: object, final: bool = False) -> None:
        """
        One response; an output is (name, dtype, shape, data in Triton's layout).
        """

    def send_bytes(self, output: str, data: object, final: bool = False) -> None:
        """One response with one BYTES element, the cheapest response there is."""

    def finish(self) -> None:
        """Ends the responses without another one."""

    def fail(self, code: int, message: str) -> None: ...

    @property
    def cancelled(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

def set_engine_loader(loader: object | None) -> None: ...

def execution_fd() -> int: ...

def open_executions() -> None: ...

def close_executions(reason: str) -> list[tuple[Any, Execution]]: ...

def drain_executions() -> list[tuple[Any, Execution]]:
    """(host, execution) for each request that has arrived."""

def take_cancelled_executions() -> list[tuple[Any, Execution]]:
    """
    (host, execution) for each one cancelled since the last call; each is told once.
    """

class BoundedDecodeStream:
    """
    A tokenizers.DecodeStream whose steps cost the same however many ids complete no character.
    """

    def __init__(self, make: Callable[[list[int]], Any], decode: Callable[[list[int]], str], ids: Sequence[int] = ()) -> None:
        """
        `make(ids)` returns a tokenizers.DecodeStream that continues after those ids. `ids` are before the first of `step`; their text ends with a whole character.
        """

    def step(self, tokenizer: Any, token_id: int, /) -> str | None:
        """
        The text that the id completes. After 16 ids without text: what is known of it.
        """

class PendingDeltas:
    """Counts, per engine, the tokens that did not produce a response."""

    def __init__(self) -> None: ...

    @property
    def streamed(self) -> int:
        """Without text, or buffered for a larger response."""

    @streamed.setter
    def streamed(self, arg: int, /) -> None: ...

    @property
    def whole(self) -> int:
        """Of requests that do not stream."""

    @whole.setter
    def whole(self, arg: int, /) -> None: ...

class TextStream:
    """
    A streamed request whose tokens become plain text, maybe with log probabilities: a response for each.
    """

    def __init__(self, execution: Execution, step: Callable[[Any, int], str | None], tokenizer: Any, pending: PendingDeltas, *, keeps_ids: bool, logprobs: int = 0) -> None: ...

    def take_count(self) -> int:
        """Tokens since the last call."""

    def take_ids(self) -> list[int]:
        """The ids of tokens that no response had since the last call."""

def advance_all(outputs: list[Any], streams: dict[str, Any]) -> tuple[list[Any], list[tuple[str, str]]]:
    """
    Sends what a step of an engine adds to the streams whose `native` is a TextStream; returns the outputs with more than text, and (request id, cause) of those that could not be sent.
    """
