"""Request bodies: every way to read one gives the same result, and every error is a 400."""

from typing import Any

from openai_frontend.errors import GatewayError
from openai_frontend.serving.request.request_body import BodyReader
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.embeddings import EmbeddingRequest
from schemas.kserve import GenerateRequest, InferRequest, LoadRequest
from schemas.models import LoadLoRAAdapterRequest, ModelChangeRequest
from schemas.rerank import RerankRequest, ScoreRequest
from schemas.sampling import RequestFields
from schemas.tokenization import DetokenizeRequest
from tests.fuzz import loop
from tests.fuzz.draw import Draw
from tests.fuzz.outcome import outcome, refusal

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

    at_once = outcome(lambda: reader.read(body), body)
    in_thread = outcome(lambda: reader.read_in_thread(body), body)
    in_turns = outcome(lambda: reader.read(body + _LONG), body)
    long = loop.run(_read_in_turns(reader, body + _LONG))

    assert at_once == in_thread
    assert in_turns == long
    assert at_once[0] == long[0]


async def _read_in_turns(reader: BodyReader[Any], body: bytes) -> tuple[str, Any]:
    try:
        return "value", await reader.read_in_turns(body)
    except GatewayError as error:
        return "refusal", refusal(error, body)
