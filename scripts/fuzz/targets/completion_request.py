"""A completion's body, prepared up to the call of the model: consistent requests or a 400."""

from openai_frontend.serving.dialects.completions import Completions
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.request_body import BodyReader
from schemas.completions import CompletionRequest
from scripts.fuzz.prepared import prepared
from tests.fast.serving.fake_model import admission

COMPLETIONS = Completions(InferenceLimits(), FieldPolicy("ignore"), admission())
READER = BodyReader(CompletionRequest)
START = b'{"model":"a","prompt":"b",'

WORDS = (
    *(f'"{field}":' for field in CompletionRequest.model_fields),
    *('"5":-100', "[[1,2],[3]]", '["a","b"]', "18446744073709551616", "-1", "1e308", "299", "300"),
)
SEEDS = (
    b'"echo":true,"logprobs":2,"n":2,"best_of":3}',
    b'"suffix":"c","max_tokens":5,"stop":["a"],"logit_bias":{"5":1}}',
    b'{"model":"a","prompt":[[1,2],[3]],"prompt_logprobs":1,"min_tokens":2,"max_tokens":3}',
    b'"guided_json":"{}","guided_whitespace_pattern":"a"}',
    b'"allowed_token_ids":[1],"bad_words":["a"],"use_beam_search":true,"n":2}',
)


def check(data: bytes) -> None:
    answer = prepared(READER, COMPLETIONS, START, data)
    assert answer is None or answer.requests
