import base64
import logging
import struct
from typing import Any

import openai.types
import orjson
import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting.tiktoken_decode import TiktokenDecoder
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.embeddings import Embeddings
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from schemas.embeddings import CreateEmbeddingResponse, EmbeddingRequest
from tests.unit.serving.fake_pooling_model import FakePoolingModel


def embeddings(*, max_concurrent_requests: int = 99, **limits: int) -> Embeddings:
    return Embeddings(
        InferenceLimits(**limits),
        FieldPolicy("reject"),
        ConcurrencyLimiter(max_concurrent_requests),
    )


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
async def test_input(given, expected):
    """Text is tokenized, token ids pass as they are, and each input is a request of its own."""
    model = FakePoolingModel()

    await create(model, input=given)

    assert expected == [(each.prompt, each.prompt_token_ids) for each in model.embedded]
    assert len({each.request_id for each in model.embedded}) == len(expected)


@pytest.mark.honours("embeddings.model")
async def test_answer():
    """The answer has each vector in its place, the model's name and what was read."""
    answer = await create(FakePoolingModel(), input=["a", "ab", "b"])

    assert [each.embedding for each in answer.data] == [[1, 0, 1], [1, 1, 2], [0, 1, 1]]
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("fake", 7, 7)


@pytest.mark.honours("embeddings.encoding_format")
async def test_base64():
    """base64 holds the little-endian float32 of the vector."""
    answer = await create(FakePoolingModel(), encoding_format="base64")

    assert struct.unpack("<3f", base64.b64decode(str(answer.data[0].embedding))) == (1, 1, 2)


@pytest.mark.parametrize("encoding_format", ["float", None])
async def test_float(encoding_format):
    """Numbers are the default, as in OpenAI's API; the SDK asks for base64 by itself."""
    answer = await create(FakePoolingModel(), encoding_format=encoding_format)

    assert answer.data[0].embedding == [1, 1, 2]


@pytest.mark.accepts("embeddings.user")
async def test_user():
    """The end user's name is taken."""
    answer = await create(FakePoolingModel(), user="somebody")

    assert len(answer.data) == 1


@pytest.mark.honours("embeddings.dimensions")
async def test_dimensions():
    """A model that was trained for it gives shorter vectors."""
    answer = await create(FakePoolingModel(matryoshka=True), dimensions=2)

    assert answer.data[0].embedding == [1, 1]


async def test_own_dimensions():
    """Every model may be asked for the length that it has."""
    answer = await create(FakePoolingModel(matryoshka=False), dimensions=3)

    assert answer.data[0].embedding == [1, 1, 2]


@pytest.mark.parametrize("given", ["", [""], ["a", ""]])
async def test_empty_text(given):
    """An empty text has a vector: langchain-openai fills gaps with it, and chunks may be empty."""
    answer = await create(FakePoolingModel(), input=given)

    assert answer.data[-1].embedding == [0, 0, 0]


@pytest.mark.honours("embeddings.add_special_tokens")
async def test_without_special_tokens():
    """vLLM's add_special_tokens=False leaves them out."""
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
async def test_truncation(fields, expected):
    """vLLM's truncate_prompt_tokens cuts what is too long; -1 cuts to the model's context."""
    model = FakePoolingModel(max_model_len=4)

    await create(model, **{"input": "abc", **fields})

    assert expected == model.embedded[0].prompt_token_ids


async def test_model_without_tokenizer():
    """Where the backend tokenizes, the text goes to it."""
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
    ({"messages": []}, "messages", "unsupported_parameter"),
    ({"nonsense": 1}, "nonsense", "unknown_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
async def test_refused(fields, param, code):
    """What cannot be honoured is refused by name, and nothing reaches the model."""
    model = FakePoolingModel()

    with pytest.raises(InvalidRequest) as refused:
        await create(model, embeddings(max_input_tokens=50), **fields)

    assert (param, code) == (refused.value.param, refused.value.code)
    assert model.embedded == []


async def test_too_many_dimensions():
    """No model gives longer vectors than it has; the message has OpenAI's numbers."""
    with pytest.raises(InvalidRequest, match=r"'dimensions' = 4\. Must be less than or equal to 3"):
        await create(FakePoolingModel(matryoshka=True), dimensions=4)


@pytest.mark.parametrize("fields", [{"truncate_prompt_tokens": 2}, {"add_special_tokens": False}])
async def test_model_without_tokenizer_refuses(fields):
    """What needs the tokenizer is refused where there is none."""
    [name] = fields

    with pytest.raises(InvalidRequest) as refused:
        await create(FakePoolingModel(has_tokenizer=False), **fields)

    assert name == refused.value.param


async def test_model_that_does_not_embed():
    """A chat model is told apart by name, before anything is read."""
    model = FakePoolingModel(tasks=["generate"])

    with pytest.raises(InvalidRequest, match="'fake' does not create embeddings") as refused:
        await create(model)

    assert refused.value.param == "model"


async def test_2048_inputs():
    """A full batch is answered whole and in order by a server that takes fewer at a time."""
    model = FakePoolingModel(vectors={str(at): [at] for at in range(2048)})

    answer = await create(
        model, embeddings(max_concurrent_requests=16), input=[str(at) for at in range(2048)]
    )

    assert [each.embedding for each in answer.data] == [[at] for at in range(2048)]
    assert model.most_at_once == 16


async def test_one_input_fails():
    """The first failure ends the whole request; no other input runs on."""
    model = FakePoolingModel(failing="b")

    with pytest.raises(ValueError, match="the model failed"):
        await create(model, input=["a", "b", "c"])

    assert model.open == 0


async def test_warning_of_foreign_token_ids(caplog):
    """Ids may be of another vocabulary: that is logged once for each model, never for text."""
    endpoint, model = embeddings(), FakePoolingModel()

    with caplog.at_level(logging.WARNING):
        await create(model, endpoint, input="a")
        assert caplog.records == []
        await create(model, endpoint, input=[[5]])
        await create(model, endpoint, input=[5])

    assert ["check_embedding_ctx_length" in record.message for record in caplog.records] == [True]


async def test_tiktoken(caplog):
    """With OpenAI's vocabulary, token ids are the text that they stand for there."""
    tiktoken = TiktokenDecoder({7: b"a", 8: b"b"})
    endpoint = Embeddings(
        InferenceLimits(), FieldPolicy("reject"), ConcurrencyLimiter(9), tiktoken=tiktoken
    )
    model = FakePoolingModel()

    await create(model, endpoint, input=[[7, 8], [8]])
    await create(model, endpoint, input="a")

    assert [each.prompt for each in model.embedded] == ["ab", "b", "a"]
    assert caplog.records == []


async def test_bytes_equal_the_schema():
    """The bytes are what the schema itself would write."""
    request = EmbeddingRequest(model="fake", input=["a", "ab"])

    body = await embeddings().create(request, FakePoolingModel())  # type: ignore[arg-type]

    answer = CreateEmbeddingResponse.model_validate_json(body)
    assert orjson.loads(body) == answer.model_dump()
