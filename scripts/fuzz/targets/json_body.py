"""Request bodies: every way to read one gives the same result, and every error is a 400."""

from typing import Any

from openai_frontend.errors import GatewayError, InvalidRequest
from openai_frontend.json_limits import TooManyParts, check_json_size
from openai_frontend.serving.request import request_body
from openai_frontend.serving.request.request_body import BodyReader
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.embeddings import EmbeddingRequest
from schemas.kserve import GenerateRequest, InferRequest, LoadRequest
from schemas.models import LoadLoRAAdapterRequest, ModelChangeRequest
from schemas.rerank import RerankRequest, ScoreRequest
from schemas.sampling import RequestFields
from schemas.tokenization import DetokenizeRequest
from scripts.fuzz import loop
from scripts.fuzz.draw import Draw
from scripts.fuzz.outcome import outcome, refusal

SCHEMAS: tuple[type[RequestFields], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    DetokenizeRequest,
    InferRequest,
    GenerateRequest,
    LoadRequest,
    ModelChangeRequest,
    LoadLoRAAdapterRequest,
)
READERS = [BodyReader(schema) for schema in SCHEMAS]
_LONG = b" " * (16 * 1024)  # more than one read parses

WORDS = (
    *(f'"{field}":' for schema in SCHEMAS for field in schema.model_fields),
    *('"role":"user"', '"content":', '"type":"text"', '"type":"function"', '"function":{"name":'),
    *("true", "false", "null", "NaN", "Infinity", "-1", "1e999", "9223372036854775808", "0.5"),
    *('"\\ud800"', '"\\u0000"', "[[", "]]", "{}", '{"a":', "\ufeff"),
)
SEEDS = (
    b'\x00{"model":"a","messages":[{"role":"user","content":"b"}],"n":2,"stream":true}',
    b'\x00{"model":"a","messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function",'
    b'"function":{"name":"f","arguments":"{}"}}]}],"tools":[{"type":"function","function":{}}]}',
    b'\x01{"model":"a","prompt":[1,2],"logit_bias":{"5":1.5},"stop":["a"]}',
    b'\x02{"model":"a","input":["b",[1]],"dimensions":8,"encoding_format":"base64"}',
    b'\x06{"inputs":[{"name":"a","shape":[1],"datatype":"BYTES","data":["b"]}]}',
)


def check(data: bytes) -> None:
    draw = Draw(data)
    reader = draw.choice(READERS)
    body = draw.rest()

    at_once = outcome(lambda: _validated(reader, body), body)
    parsed = outcome(lambda: reader.parse(body), body)
    long_at_once = outcome(lambda: _validated(reader, body + _LONG), body)
    long = loop.run(_read(reader, body + _LONG))

    assert at_once == parsed
    assert long_at_once == long
    assert at_once[0] == long[0]


def _validated(reader: BodyReader[Any], body: bytes) -> Any:
    """By pydantic's own parser."""
    body = request_body._utf8(body)
    _check_size(body)
    return reader._validate_json(body)


def _check_size(body: bytes) -> None:
    try:
        check_json_size(body)
    except TooManyParts as error:
        message = f"We could not parse the JSON body of your request: it has {error}."
        raise InvalidRequest(message, code="json_invalid") from None


async def _read(reader: BodyReader[Any], body: bytes) -> tuple[str, Any]:
    try:
        return "value", await reader.read(body)
    except GatewayError as error:
        return "refusal", refusal(error, body)
