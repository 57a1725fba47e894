"""A completion's body, as far as the model's door: what reaches it, or a 400."""

from openai_frontend.errors import GatewayError
from openai_frontend.serving.admission import Admission
from openai_frontend.serving.completions import Completions
from openai_frontend.serving.fields import FieldPolicy
from openai_frontend.serving.limits import Limits
from openai_frontend.serving.request_body import BodyReader
from schemas.completions import CompletionRequest
from tests.fuzz import loop
from tests.fuzz.outcome import refusal
from tests.serving.fake_model import FakeModel

COMPLETIONS = Completions(Limits(), FieldPolicy("ignore"), Admission(99))
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
    """What begins as no object is the end of one that is valid so far."""
    body = data if data.startswith(b"{") else START + data
    loop.run(_prepare(body))


async def _prepare(body: bytes) -> None:
    try:
        request = READER.read(body)
        answer = await COMPLETIONS.prepare(request, FakeModel(max_model_len=10_000))  # type: ignore[arg-type]
    except GatewayError as error:
        refusal(error)
        return
    assert answer.requests
