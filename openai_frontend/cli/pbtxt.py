"""Reads and writes `config.pbtxt`, protobuf's text format of Triton's ModelConfig.

`model_config.proto` is Triton's schema (triton-inference-server/common, b0b5387); `make proto`
compiles it into `model_config.binpb`.
"""

from collections.abc import Mapping, MutableMapping, MutableSequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf import text_format as protobuf_text
from google.protobuf.message import Message

DESCRIPTORS = Path(__file__).with_name("model_config.binpb")


def _message_class() -> Any:
    # A pool of its own: Triton's clients register another version of the same file.
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


_ModelConfig = _message_class()


def read(text: str) -> dict[str, Any]:
    """The config in the shape of the JSON that Triton gives of it: unset fields have defaults.

    Raises ValueError with line and column.
    """
    try:
        return _fields(protobuf_text.Parse(text, _ModelConfig()))
    except protobuf_text.ParseError as error:
        # It begins with the position and the line's text
        reason = str(error).partition(" : ")[2].rpartition("': ")[2]
        raise ValueError(f"line {error.GetLine()}, column {error.GetColumn()}: {reason}") from error


def write(config: Mapping[str, Any]) -> str:
    """The text of a model's config, which has the shape of the JSON that Triton gives of it."""
    message = json_format.ParseDict(config, _ModelConfig())
    text: str = protobuf_text.MessageToString(
        message, as_utf8=True, use_short_repeated_primitives=True
    )
    return text


def _fields(message: Message) -> dict[str, Any]:
    """json_format would spell integers of 64 bits as text; Triton does not."""
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, MutableMapping):
        of_entry = field.message_type.fields_by_name["value"]
        return {str(key): _single(of_entry, value[key]) for key in value}
    if isinstance(value, MutableSequence):
        return [_single(field, each) for each in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _fields(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value
