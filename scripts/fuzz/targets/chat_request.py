"""A chat's body, prepared up to the call of the model: consistent requests or a 400."""

import orjson

from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.request_body import BodyReader
from schemas.chat_completions import ChatCompletionRequest
from scripts.fuzz.prepared import prepared
from scripts.fuzz.targets import json_body
from tests.fast.serving.fake_model import chat_completions

CHATS = chat_completions(policy=FieldPolicy("ignore"))
READER = BodyReader(ChatCompletionRequest)
START = b'{"model":"a","messages":[{"role":"user","content":"b"}],'

WORDS = (
    *(f'"{field}":' for field in ChatCompletionRequest.model_fields),
    *('"json_schema":{"name":"a","schema":', '"type":"json_schema"', '"strict":true'),
    *('"type":"function"', '"function":{"name":"f","parameters":', '"type":"custom"'),
    *('"grammar":{"syntax":"lark","definition":', '"tool_calls":[', '"type":"structural_tag"'),
    *('"type":"image_url"', '"image_url":{"url":"data:image/png;base64,', '"uuid":"u"'),
    *('"$ref":"#/', '"properties":{', '"enum":[', '"anyOf":[', '"type":[', '"required":['),
)
SEEDS = (
    b'"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]}',
    b'"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required","n":2}',
    b'"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"null"}}}}',
    b'"response_format":{"type":"json_object"},"logprobs":true,"top_logprobs":2}',
    b'"structured_outputs":{"choice":["a","b"]},"stream":true,"stream_options":{}}',
    b'"tools":[{"type":"custom","custom":{"name":"f","format":{"type":"grammar","grammar":'
    b'{"syntax":"lark","definition":"start: \\"a\\""}}}}],"parallel_tool_calls":false}',
    b'"messages":[{"role":"tool","content":[{"type":"image_url","image_url":{"url":'
    b'"data:image/gif;base64,R0lGODlhAgADAIAAAAABAgMEBSwAAAAAAgADAAACAkQBADs="}}]}]}',
    *(seed[1:] for seed in json_body.SEEDS[:2]),
)


def check(data: bytes) -> None:
    answer = prepared(READER, CHATS, START, data)
    if answer is None:
        return
    assert len(answer.requests) == answer.n
    for each in answer.requests:
        structured = each.sampling_params.structured_outputs
        if structured is not None and structured.json is not None:
            orjson.dumps(structured.json)  # the engine gets it as text
