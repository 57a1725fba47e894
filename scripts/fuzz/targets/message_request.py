"""A body of /v1/messages, prepared up to the call of the model: consistent requests or a 400."""

from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.messages.reader import Messages
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.request_body import BodyReader
from schemas.messages import MessagesRequest
from scripts.fuzz.prepared import prepared
from tests.fast.serving.fake_model import admission

MESSAGES = Messages(Conversations(InferenceLimits(), admission()), FieldPolicy("ignore"))
READER = BodyReader(MessagesRequest)
START = b'{"model":"a","max_tokens":9,"messages":[{"role":"user","content":"b"}],'

WORDS = (
    *(f'"{field}":' for field in MessagesRequest.model_fields),
    *('"type":"tool_use"', '"type":"tool_result"', '"tool_use_id":"1"', '"is_error":true'),
    *('"type":"thinking"', '"signature":"ofr1.', '"type":"redacted_thinking"', '"data":"'),
    *('"type":"image"', '"source":{"type":"base64","media_type":"image/png","data":"'),
    *('"type":"document"', '"source":{"type":"text","media_type":"text/plain","data":"'),
    *('"type":"search_result"', '"type":"server_tool_use"', '"type":"tool_reference"'),
    *('"input_schema":{"type":"object"}', '"type":"web_search_20260318"', '"strict":true'),
    *('"type":"enabled","budget_tokens":', '"type":"adaptive"', '"display":"omitted"'),
    *(
        '"role":"system"',
        '"cache_control":{"type":"ephemeral"}',
        '"disable_parallel_tool_use":true',
    ),
)
SEEDS = (
    b'"tools":[{"name":"f","input_schema":{"type":"object"},"strict":true}],'
    b'"tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true}}',
    b'"system":[{"type":"text","text":"x-anthropic-billing-header: a"},{"type":"text","text":"b"}],'
    b'"thinking":{"type":"enabled","budget_tokens":9},"stop_sequences":["a"]}',
    b'"output_config":{"effort":"max","format":{"type":"json_schema","schema":{"type":"null"}}},'
    b'"tools":[{"type":"web_search_20260318","name":"web_search"}],"stream":true}',
    b'{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":'
    b'"image","source":{"type":"base64","media_type":"image/gif","data":'
    b'"R0lGODlhAgADAIAAAAABAgMEBSwAAAAAAgADAAACAkQBADs="}}]}]}',
    b'{"max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{'
    b'"type":"thinking","thinking":"","signature":"ofr1.eJwDAAAAAAE="},{"type":"tool_use","id":"1",'
    b'"name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1",'
    b'"content":[{"type":"text","text":"b"}]}]}]}',
    b'{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":{"type":'
    b'"text","media_type":"text/plain","data":"a"}},{"type":"search_result","source":"s",'
    b'"title":"t","content":[{"type":"text","text":"b"}]}]},{"role":"assistant","content":"c"}]}',
)


def check(data: bytes) -> None:
    answer = prepared(READER, MESSAGES, START, data)
    if answer is None:
        return
    assert len(answer.job.requests) == 1
    assert answer.job.tools.allowed <= answer.job.tools.functions.keys()
    assert answer.options.max_tokens >= 1
