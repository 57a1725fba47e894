"""A body of /v1/responses, prepared up to the call of the model: consistent requests or a 400."""

import orjson

from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.responses.reader import Responses
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.request_body import BodyReader
from schemas.responses import ResponsesRequest
from scripts.fuzz.prepared import prepared
from tests.fast.serving.fake_model import admission

RESPONSES = Responses(Conversations(InferenceLimits(), admission()), FieldPolicy("ignore"))
READER = BodyReader(ResponsesRequest)
START = b'{"model":"a","input":"b",'

WORDS = (
    *(f'"{field}":' for field in ResponsesRequest.model_fields),
    *('"type":"function_call"', '"type":"function_call_output"', '"type":"reasoning"'),
    *('"type":"custom_tool_call"', '"type":"tool_search_output"', '"type":"additional_tools"'),
    *('"type":"input_text"', '"type":"input_image"', '"type":"input_file"', '"output":['),
    *('"type":"namespace"', '"namespace":"n"', '"type":"tool_search"', '"execution":"client"'),
    *('"defer_loading":true', '"type":"allowed_tools"', '"mode":"required"', '"type":"web_search"'),
    *('"type":"configuration_update"', '"encrypted_content":"ofr1.', '"arguments":', '"summary":['),
    *('"format":{"type":"grammar","syntax":"lark","definition":', '%import common.LF'),
    *('"format":{"type":"json_schema","name":"a","schema":', '"truncation":"auto"'),
)  # fmt: skip
SEEDS = (
    b'"tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true}],'
    b'"tool_choice":{"type":"function","name":"f"}}',
    b'"tools":[{"type":"namespace","name":"n","tools":[{"type":"custom","name":"c"}]},'
    b'{"type":"tool_search","execution":"client"},{"type":"web_search"}],"include":[]}',
    b'"tools":[{"type":"custom","name":"c","format":{"type":"grammar","syntax":"lark",'
    b'"definition":"start: /.+/ LF\\n%import common.LF"}}],"parallel_tool_calls":false}',
    b'{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"reasoning",'
    b'"summary":[],"encrypted_content":"ofr1.eJwDAAAAAAE="},{"type":"function_call","call_id":"1",'
    b'"name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"b"}]}',
    b'{"input":[{"type":"web_search_call","id":"w"},{"type":"agent_message","content":"a"},'
    b'{"type":"configuration_update","reasoning":{"effort":"low"}},{"type":"compaction"}]}',
    b'"text":{"format":{"type":"json_schema","name":"a","schema":{"type":"null"}}},"top_logprobs":1,'
    b'"include":["message.output_text.logprobs"],"reasoning":{"summary":"auto","effort":"max"}}',
    b'{"input":[{"role":"user","content":[{"type":"input_image","image_url":'
    b'"data:image/gif;base64,R0lGODlhAgADAIAAAAABAgMEBSwAAAAAAgADAAACAkQBADs="}]}]}',
)


def check(data: bytes) -> None:
    answer = prepared(READER, RESPONSES, START, data)
    if answer is None:
        return
    assert len(answer.job.requests) == 1
    assert orjson.loads(answer.document("in_progress"))["status"] == "in_progress"
    flat = set(answer.form.names.by_flat)
    assert answer.job.tools.allowed <= flat
