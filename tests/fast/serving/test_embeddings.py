import base64
import logging
import struct
from typing import Any

import openai.types
import orjson
import pytest

from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.prompting.token_bytes import TiktokenDecoder
from openai_frontend.serving.embeddings import Embeddings
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from schemas.embeddings import CreateEmbeddingResponse, EmbeddingRequest
from tests.fast.serving.fake_model import admission
from tests.fast.serving.fake_pooling_model import FakePoolingModel


def embeddings(*, max_concurrent_requests: int = 99, **limits: int) -> Embeddings:
    policy = FieldPolicy("reject")
    inputs = PoolingInputs(InferenceLimits(**limits), policy)
    return Embeddings(inputs, policy, admission(max_concurrent_requests))


async def create(
    model: FakePoolingModel, endpoint: Embeddings | None = None, **fields: Any
) -> CreateEmbeddingResponse:
    request = EmbeddingRequest.model_validate({"model": "fake", "input": "ab", **fields})
    body = await (endpoint or embeddings()).create(request, model)  # type: ignore[arg-type]
    if request.encoding_format != "base64":  # the SDK decodes it before it reads its own type
        openai.types.CreateEmbeddingResponse.model_validate_json(body, strict=True)
    return CreateEmbeddingResponse.model_validate_json(body, strict=True)


INPUTS = [
    ("ab", [("ab", [97, 98, 1])]),
    (["a", "b"], [("a", [97, 1]), ("b", [98, 1])]),
    ([5, 6], [(None, [5, 6])]),
    ([[5], [6, 7]], [(None, [5]), (None, [6, 7])]),
]


@pytest.mark.honours("embeddings.input")
@pytest.mark.parametrize(("given", "expected"), INPUTS)
async def test_each_input_becomes_a_request(given, expected):
    """Text is tokenized; token ids pass unchanged."""
    model = FakePoolingModel()

    await create(model, input=given)

    assert expected == [(each.prompt, each.prompt_token_ids) for each in model.embedded]
    assert len({each.request_id for each in model.embedded}) == len(expected)


@pytest.mark.honours("embeddings.model")
async def test_answer_has_the_vectors_in_order():
    """It also has the model's name and the usage."""
    answer = await create(FakePoolingModel(), input=["a", "ab", "b"])

    assert [each.embedding for each in answer.data] == [[1, 0, 1], [1, 1, 2], [0, 1, 1]]
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("fake", 7, 7)


@pytest.mark.honours("embeddings.encoding_format")
async def test_base64_is_the_little_endian_float32_vector():
    answer = await create(FakePoolingModel(), encoding_format="base64")

    assert struct.unpack("<3f", base64.b64decode(str(answer.data[0].embedding))) == (1, 1, 2)


@pytest.mark.parametrize("encoding_format", ["float", None])
async def test_encoding_format_defaults_to_float(encoding_format):
    """OpenAI's API has the same default. The SDK requests base64 explicitly."""
    answer = await create(FakePoolingModel(), encoding_format=encoding_format)

    assert answer.data[0].embedding == [1, 1, 2]


@pytest.mark.honours("embeddings.dimensions")
async def test_matryoshka_model_gives_shorter_vectors():
    answer = await create(FakePoolingModel(matryoshka=True), dimensions=2)

    assert answer.data[0].embedding == [1, 1]


@pytest.mark.parametrize("matryoshka", [False, True, None])
async def test_any_model_accepts_its_own_dimensions(matryoshka):
    """They are not sent to the model, which may know no other length."""
    model = FakePoolingModel(matryoshka=matryoshka)

    answer = await create(model, dimensions=3)

    assert answer.data[0].embedding == [1, 1, 2]
    assert model.embedded[0].dimensions is None


class OfUnknownLength(FakePoolingModel):
    """A model that reports no length and refuses every `dimensions`."""

    refusal: Exception

    async def embed(self, requests):
        if requests[0].dimensions is not None:
            raise self.refusal
        return await super().embed(requests)


@pytest.mark.parametrize("refusal", [InvalidRequest("no"), InferenceFailed("no")])
async def test_models_of_unknown_length_accept_their_own_dimensions(refusal):
    """The vector shows it. Any other length is a 400 for the field."""
    model = OfUnknownLength(dimensions=None, matryoshka=None)
    model.refusal = refusal

    answer = await create(model, dimensions=3)
    with pytest.raises(InvalidRequest) as refused:
        await create(model, dimensions=2)

    assert answer.data[0].embedding == [1, 1, 2]
    assert refused.value.param == "dimensions"


async def test_other_failures_of_such_a_model_are_its_own():
    """Neither a failure without the field nor one that does not depend on it is hidden."""
    model = OfUnknownLength(dimensions=None, matryoshka=None, failing="ab")
    model.refusal = InvalidRequest("too long", param="input")

    with pytest.raises(ValueError, match="the model failed"):
        await create(model)


@pytest.mark.parametrize("given", ["", [""], ["a", ""]])
async def test_empty_text_has_a_vector(given):
    """langchain-openai fills gaps with this vector, and chunks may be empty."""
    answer = await create(FakePoolingModel(), input=given)

    assert answer.data[-1].embedding == [0, 0, 0]


@pytest.mark.honours("embeddings.add_special_tokens")
async def test_add_special_tokens_false_omits_them():
    """The field is vLLM's."""
    model = FakePoolingModel()

    await create(model, add_special_tokens=False)

    assert model.embedded[0].prompt_token_ids == [97, 98]


CUTS: list[tuple[dict[str, Any], list[int]]] = [
    ({"truncate_prompt_tokens": 2}, [97, 98]),
    ({"truncate_prompt_tokens": -1}, [97, 98, 99, 1]),
    ({"truncate_prompt_tokens": 2, "input": [5, 6, 7]}, [5, 6]),
    ({"truncate_prompt_tokens": 2, "truncation_side": "left", "input": [5, 6, 7]}, [6, 7]),
]


@pytest.mark.honours("embeddings.truncate_prompt_tokens", "embeddings.truncation_side")
@pytest.mark.parametrize(("fields", "expected"), CUTS)
async def test_truncate_prompt_tokens_cuts_the_input(fields, expected):
    """-1 cuts to the model's context. The field is vLLM's."""
    model = FakePoolingModel(max_model_len=4)

    await create(model, **{"input": "abc", **fields})

    assert expected == model.embedded[0].prompt_token_ids


async def test_model_without_a_tokenizer_gets_the_text():
    """The backend tokenizes it."""
    model = FakePoolingModel(has_tokenizer=False)

    await create(model, input=["ab"])

    assert (model.embedded[0].prompt, model.embedded[0].prompt_token_ids) == ("ab", None)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": ["a"] * 2049}, "input", "array_above_max_length"),
    ({"input": [[1]] * 2049}, "input", "array_above_max_length"),
    ({"input": ["a", "a" * 10]}, "input[1]", "context_length_exceeded"),
    ({"input": [[5], [5] * 11]}, "input[1]", "context_length_exceeded"),
    ({"input": [5] * 11}, "input", "context_length_exceeded"),
    ({"input": [5, 300]}, "input", "invalid_value"),
    ({"input": [[5], [300]]}, "input[1]", "invalid_value"),
    ({"input": "", "add_special_tokens": False}, "input", "empty_string"),
    ({"input": ["a", ""], "add_special_tokens": False}, "input[1]", "empty_string"),
    ({"input": ["a" * 9] * 6}, "input", "max_tokens_per_request"),
    ({"dimensions": 2}, "dimensions", "unsupported_parameter"),
    ({"dimensions": 4}, "dimensions", "unsupported_parameter"),
    ({"truncate_prompt_tokens": 11}, "truncate_prompt_tokens", "integer_above_max_value"),
    ({"priority": 1}, "priority", "unsupported_parameter"),
    ({"embed_dtype": "float16"}, "embed_dtype", "unsupported_parameter"),
    ({"messages": [{"role": "user", "content": "a"}]}, "messages", "invalid_value"),
    ({"nonsense": 1}, "nonsense", "unknown_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
async def test_invalid_request_is_refused_by_field(fields, param, code):
    """The request does not reach the model."""
    model = FakePoolingModel()

    with pytest.raises(InvalidRequest) as refused:
        await create(model, embeddings(max_input_tokens=50), **fields)

    assert (param, code) == (refused.value.param, refused.value.code)
    assert model.embedded == []


async def test_dimensions_beyond_the_model_are_refused():
    """The message has OpenAI's numbers."""
    with pytest.raises(InvalidRequest, match=r"'dimensions' = 4\. Must be less than or equal to 3"):
        await create(FakePoolingModel(matryoshka=True), dimensions=4)


@pytest.mark.parametrize("fields", [{"truncate_prompt_tokens": 2}, {"add_special_tokens": False}])
async def test_model_without_a_tokenizer_refuses_fields_that_need_one(fields):
    [name] = fields

    with pytest.raises(InvalidRequest) as refused:
        await create(FakePoolingModel(has_tokenizer=False), **fields)

    assert name == refused.value.param


async def test_chat_model_is_refused_by_name():
    """The check runs before the server reads the input."""
    model = FakePoolingModel(tasks=["generate"])

    with pytest.raises(InvalidRequest, match="'fake' does not create embeddings") as refused:
        await create(model)

    assert refused.value.param == "model"


async def test_2048_inputs_are_answered_in_order_by_a_smaller_server():
    """The server runs fewer requests at a time than the batch has."""
    model = FakePoolingModel(vectors={str(at): [at] for at in range(2048)})

    answer = await create(
        model, embeddings(max_concurrent_requests=16), input=[str(at) for at in range(2048)]
    )

    assert [each.embedding for each in answer.data] == [[at] for at in range(2048)]
    assert model.most_at_once == 16


async def test_first_failure_ends_the_request():
    """The other inputs are cancelled."""
    model = FakePoolingModel(failing="b")

    with pytest.raises(ValueError, match="the model failed"):
        await create(model, input=["a", "b", "c"])

    assert model.open == 0


async def test_token_ids_of_a_client_are_logged_once_per_model(caplog):
    """They may belong to another vocabulary. Text never causes the warning."""
    endpoint, model = embeddings(), FakePoolingModel()

    with caplog.at_level(logging.WARNING):
        await create(model, endpoint, input="a")
        assert caplog.records == []
        await create(model, endpoint, input=[[5]])
        await create(model, endpoint, input=[5])

    assert ["check_embedding_ctx_length" in record.message for record in caplog.records] == [True]


async def test_token_ids_are_decoded_with_openai_s_vocabulary(caplog):
    tiktoken = TiktokenDecoder({7: b"a", 8: b"b"})
    policy = FieldPolicy("reject")
    inputs = PoolingInputs(InferenceLimits(), policy, tiktoken=tiktoken)
    endpoint = Embeddings(inputs, policy, admission(9))
    model = FakePoolingModel()

    await create(model, endpoint, input=[[7, 8], [8]])
    await create(model, endpoint, input="a")

    assert [each.prompt for each in model.embedded] == ["ab", "b", "a"]
    assert caplog.records == []


async def test_bytes_equal_the_dump_of_the_schema():
    request = EmbeddingRequest(model="fake", input=["a", "ab"])

    body = await embeddings().create(request, FakePoolingModel())  # type: ignore[arg-type]

    answer = CreateEmbeddingResponse.model_validate_json(body)
    assert orjson.loads(body) == answer.model_dump()
