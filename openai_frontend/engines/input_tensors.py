"""Reads the requests for text from their tensors, which `tensors.py` lists."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, Protocol

from openai_frontend.engines import sampling_parameters
from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.media import read_audio, read_audio_files, read_images
from openai_frontend.engines.sampling_parameters import read_object
from openai_frontend.generation import (
    Adapter,
    GenerationRequest,
    KVTransfer,
    SamplingParams,
    UsageCounter,
)
from openai_frontend.triton import error_codes
from schemas.sampling import MAX_CACHE_SALT_CHARACTERS, MAX_STREAM_INTERVAL, OWNER_CHARACTERS

_FEW_BYTES = 1024
INT32_BYTES = 4
_TRANSFER_BYTES = 4 * 1024 * 1024  # it has the number of each block of the prompt
_NO_ADAPTERS: Mapping[str, Adapter] = MappingProxyType({})
_FLAGS = frozenset({"stream", "return_token_ids", "count_tokens", "logprob_arrays"})
_NOT_COUNTED = UsageCounter()  # the caller counts what the engine sends


class Tensor(Protocol):
    """An input tensor, as the backend provides it."""

    @property
    def nbytes(self) -> int:
        """Size in bytes of the buffer."""

    def item(self) -> Any: ...

    def tolist(self) -> list[Any]: ...


def read_generation(
    inputs: Mapping[str, Tensor],
    request_id: str,
    max_model_len: int,
    adapters: Mapping[str, Adapter] = _NO_ADAPTERS,
    parameters: Callable[[], Mapping[str, Any]] = dict,
) -> GenerationRequest:
    """Decode a generation request for a model with `max_model_len` tokens of context.

    `adapters` are the ones that the request may name. `parameters` returns the request's own
    parameters, which replace the tensor `sampling_parameters` if it is absent, as in NVIDIA's
    backend. Raises ValueError, naming the tensor.
    """
    prompt, token_ids = _read_prompt(inputs, max_model_len)
    sampling_params, lora_name = _read_sampling_parameters(inputs, parameters)
    cache_salt = read_cache_salt(inputs) if "cache_salt" in inputs else None
    set_flags = flags(inputs, _FLAGS)
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=token_ids,
        images=read_images(inputs, cache_salt) if "image" in inputs else (),
        audio_files=read_audio_files(inputs, cache_salt) if "audio_file" in inputs else (),
        audio=read_audio(inputs, cache_salt) if "audio" in inputs else None,
        sampling_params=sampling_params,
        adapter=None if lora_name is None else _adapter(lora_name, adapters),
        stream="stream" in set_flags,
        return_token_ids="return_token_ids" in set_flags,
        count_tokens="count_tokens" in set_flags,
        logprob_arrays="logprob_arrays" in set_flags,
        priority=inputs["priority"].item() if "priority" in inputs else 0,
        cache_salt=cache_salt,
        stream_interval=_read_interval(inputs) if "stream_interval" in inputs else 1,
        usage=_NOT_COUNTED,
        kv_transfer=_read_transfer(inputs["kv_transfer"]) if "kv_transfer" in inputs else None,
    )


def read_text_before(inputs: Mapping[str, Tensor], request: GenerationRequest) -> str:
    """Return the prompt if `exclude_input_in_output` is false, else "".

    Raises ValueError if the prompt cannot be returned.
    """
    excluded = inputs.get("exclude_input_in_output")
    if excluded is None or excluded.item():
        return ""
    if request.stream or request.prompt is None:
        raise ValueError("exclude_input_in_output: false requires text_input and no streaming")
    return request.prompt


def flags(inputs: Mapping[str, Tensor], names: AbstractSet[str]) -> list[str]:
    """Return those of the BOOL inputs that are present and true: most requests have none."""
    return [name for name in names if name in inputs and inputs[name].item()]


def _read_prompt(
    inputs: Mapping[str, Tensor], max_model_len: int
) -> tuple[str | None, Sequence[int] | None]:
    if "prompt_token_ids" in inputs:
        return None, read_token_ids(inputs["prompt_token_ids"], max_model_len)
    if "text_input" in inputs:
        return _read_text(inputs["text_input"], "text_input"), None
    raise ValueError("the request needs text_input or prompt_token_ids")


def read_token_ids(tensor: Any, max_model_len: int) -> Sequence[int]:
    check_count(tensor.nbytes // INT32_BYTES, "prompt_token_ids", max_model_len)
    return as_sequence(tensor)


def as_sequence(tensor: Any) -> Sequence[int]:
    """A list costs 20 ns per id, so more than a few stay an array."""
    if tensor.nbytes < _FEW_BYTES:
        few: list[int] = tensor.tolist()
        return few
    token_ids = array("i")
    token_ids.frombytes(memoryview(tensor).cast("B"))
    return token_ids


def check_count(count: int, name: str, max_model_len: int) -> None:
    if count > max_model_len:
        raise ValueError(
            f"{name}: {count} tokens exceed the model's context length of {max_model_len}"
        )


def read_cache_salt(inputs: Mapping[str, Tensor]) -> str | None:
    if (tensor := inputs.get("cache_salt")) is None:
        return None
    salt = _read_text(tensor, "cache_salt")
    if len(salt) > MAX_CACHE_SALT_CHARACTERS + OWNER_CHARACTERS:
        raise ValueError(
            f"cache_salt: at most {MAX_CACHE_SALT_CHARACTERS} characters, not {len(salt)}"
        )
    return salt


def _read_interval(inputs: Mapping[str, Tensor]) -> int:
    interval: int = inputs["stream_interval"].item()
    if not 1 <= interval <= MAX_STREAM_INTERVAL:
        raise ValueError(f"stream_interval: from 1 to {MAX_STREAM_INTERVAL}, not {interval}")
    return interval


def _read_transfer(tensor: Tensor) -> KVTransfer:
    return KVTransfer(**read_object(tensor.item(), "kv_transfer", _TRANSFER_BYTES))


def _read_text(tensor: Tensor, name: str) -> str:
    try:
        text: str = tensor.item().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: {error}") from error
    return text


def _read_sampling_parameters(
    inputs: Mapping[str, Tensor], parameters: Callable[[], Mapping[str, Any]]
) -> tuple[SamplingParams, str | None]:
    """The parameters and the name of the LoRA adapter that they select."""
    tensor = inputs.get("sampling_parameters")
    if tensor is None:
        return sampling_parameters.read(parameters())
    return sampling_parameters.read_text(tensor.item())


def _adapter(name: str, adapters: Mapping[str, Adapter]) -> Adapter:
    """Looks up by name only: paths in the request are ignored. The adapter of a valid request may
    have been unloaded since.
    """
    try:
        return adapters[name]
    except KeyError:
        message = "lora_name: the model has no adapter with that name"
        raise EngineError(message, error_codes.NOT_FOUND) from None
