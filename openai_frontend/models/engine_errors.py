"""Names the request's field in an engine's error, whose text begins with a name of its own."""

import re
from collections.abc import Sequence
from dataclasses import fields

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.media.modalities import AudioFile, ImageInput
from openai_frontend.pooling import EmbedRequest, ScorePairRequest

_INPUT = re.compile(r"input\[(\d+)\]: ")


def name_input(
    refused: InvalidRequest, requests: Sequence[EmbedRequest] | Sequence[ScorePairRequest]
) -> None:
    """Set `param` of an engine's error, which starts with the input's position if the batch has
    several. The message names the input instead where the dimensions may be the reason.
    """
    prefix = _INPUT.match(refused.message) if len(requests) > 1 else None
    if refused.param or not (prefix or len(requests) == 1):
        return
    one = requests[int(prefix[1]) if prefix else 0]
    refused.message = refused.message[prefix.end() if prefix else 0 :]
    images = one.images if isinstance(one, EmbedRequest) else ()
    if item := _named_item(refused.message, images) or _too_long(refused.message):
        refused.message, refused.param, refused.code = item.message, item.param, item.code
    elif refused.message.startswith(_DIMENSIONS):
        refused.message = f"Invalid 'dimensions': {refused.message.removeprefix(_DIMENSIONS)}"
        refused.param = "dimensions"
    elif one.param and isinstance(one, EmbedRequest) and one.dimensions:
        refused.message = f"{one.param}: {refused.message}"
    else:
        refused.param = one.param


_REFUSABLE = frozenset(each.name for each in fields(SamplingParams)) | {"priority", "cache_salt"}


_AUDIO = "audio: "
_DIMENSIONS = "dimensions: "
_CONTEXT = "context: "  # only the engine knows how many tokens the media has
_MEDIA = re.compile(r"(image|audio)(?:\[(\d+)\])?: ")
# The path of a part of a schema, at the beginning of a reason
_SCHEMA_PATH = re.compile(
    r"((?:properties|patternProperties|additionalProperties|propertyNames|items|prefixItems|anyOf"
    r"|oneOf|allOf|\$defs|definitions)[.\[][^:]{0,256}|items|additionalProperties|propertyNames): "
)
_CODES = {"image": "image_parse_error", "audio": "invalid_audio"}


def _named_item(
    message: str, images: Sequence[ImageInput], audio_files: Sequence[AudioFile] = ()
) -> InvalidRequest | None:
    """The error with the item's place for one that starts with the item: `image[1]: ...`."""
    if (prefix := _MEDIA.match(message)) is None:
        return None
    items: Sequence[ImageInput | AudioFile] = images if prefix[1] == "image" else audio_files
    if not items:
        return None
    param = items[min(int(prefix[2] or 0), len(items) - 1)].param
    reason = message[prefix.end() :]
    return InvalidRequest(f"Invalid '{param}': {reason}", param=param, code=_CODES[prefix[1]])


def _too_long(message: str) -> InvalidRequest | None:
    """The error of a prompt that does not fit with its media, which only chats have."""
    if not message.startswith(_CONTEXT):
        return None
    return ContextLengthExceeded(message.removeprefix(_CONTEXT), param="messages")


def named(refused: InvalidRequest, request: GenerationRequest) -> InvalidRequest:
    """Set `param` of an engine's error, which starts with the field: `structured_outputs: ...`."""
    if item := _named_item(refused.message, request.images, request.audio_files):
        return item
    if request.audio is not None and refused.message.startswith(_AUDIO):
        param, reason = request.audio.param, refused.message.removeprefix(_AUDIO)
        return InvalidRequest(f"Invalid '{param}': {reason}", param=param, code="invalid_audio")
    if too_long := _too_long(refused.message):
        return too_long
    name, _, reason = refused.message.removeprefix("sampling_parameters: ").partition(": ")
    if refused.param is not None or name not in _REFUSABLE | request.field_names.keys():
        return refused
    param = request.field_names.get(name, name)
    if name.startswith("structured_outputs") and (found := _SCHEMA_PATH.match(reason)):
        param, reason = f"{param}.{found[1]}", reason[found.end() :]
    return type(refused)(f"Invalid '{param}': {reason}", param=param, code=refused.code)
