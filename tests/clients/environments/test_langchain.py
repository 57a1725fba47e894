"""langchain-openai: chat, streaming, structured output, and embeddings with tiktoken's tokens."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import httpx2
import openai
import pytest
from pydantic import BaseModel, Field

from tests import images
from tests.clients.environments import TIKTOKEN_CACHE

if TYPE_CHECKING:  # each worker would import it to collect these tests
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

pytestmark = pytest.mark.engine

Chat = Callable[..., "ChatOpenAI"]
ALICE = "Give me a JSON object with name Alice and age 30."


class Person(BaseModel):
    """A person."""

    name: Literal["Alice"] = Field(description="the first name")
    age: Literal[30]


class Weather(BaseModel):
    """Any class serves as a tool."""

    city: Literal["Oslo", "Lima"]


@pytest.fixture
def connections() -> Iterator[dict[str, Any]]:
    """HTTP clients that are closed after the test: LangChain keeps its own open for ever."""
    with httpx2.Client(timeout=600) as http:
        yield {"http_client": http, "api_key": "none", "max_retries": 0}


@pytest.fixture
def chat(url: str, connections: dict[str, Any]) -> Chat:
    """Returns a chat model; `options` are ChatOpenAI's."""
    from langchain_openai import ChatOpenAI

    def make(**options: Any) -> ChatOpenAI:
        settings: dict[str, Any] = {"model": "demo", "temperature": 0, **connections, **options}
        return ChatOpenAI(base_url=url, **settings)

    return make


def test_answer_has_usage_and_finish_reason(chat):
    """invoke() returns text, with LangChain's usage and metadata."""
    answer = chat().invoke("What is Triton?")

    assert "Triton" in answer.text
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"


def test_max_tokens_reaches_the_engine(chat):
    """LangChain renames max_tokens to max_completion_tokens, which the gateway honours."""
    answer = chat(max_tokens=3).invoke("What is Triton?")

    assert answer.usage_metadata["output_tokens"] == 3


def test_stream_sums_to_the_answer(chat):
    """The chunks of stream() sum to the result of invoke(); usage is absent by default."""
    model = chat()
    chunks = list(model.stream("What is Triton?"))

    assert "".join(chunk.text for chunk in chunks) == model.invoke("What is Triton?").text
    assert [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata] == []


def test_stream_has_usage_on_request(chat):
    """stream_usage=True requests the usage chunk, and the sum contains it."""
    from langchain_core.messages import AIMessageChunk

    total: Any = AIMessageChunk(content="")
    for chunk in chat(stream_usage=True, max_tokens=5).stream("What is Triton?"):
        total += chunk

    assert total.usage_metadata["output_tokens"] == 5


async def test_async_stream_sums_to_the_answer(chat):
    """astream() gives the same as stream()."""
    async with httpx2.AsyncClient(timeout=600) as http:
        model = chat(max_tokens=5, http_async_client=http)
        texts = [chunk.text async for chunk in model.astream("What is Triton?")]

    assert "".join(texts) == model.invoke("What is Triton?").text


def test_batch_keeps_its_order(chat):
    """batch() sends its inputs concurrently; each answer belongs to its own question."""
    questions = ["What is Triton?", "Hello!", "Who are you?"]

    answers = chat().batch(questions)

    assert [answer.text for answer in answers] == [chat().invoke(q).text for q in questions]


def test_logprobs_are_in_the_metadata(chat):
    """logprobs=True gives one entry per token."""
    answer = chat(logprobs=True, top_logprobs=2, max_tokens=3).invoke("What is Triton?")

    entries = answer.response_metadata["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2]


@pytest.mark.parametrize("method", [None, "json_schema", "json_mode"])
def test_structured_output_is_an_object(chat, method):
    """with_structured_output(), with its default method and each method without tools."""
    options = {} if method is None else {"method": method}

    person = chat().with_structured_output(Person, **options).invoke(ALICE)

    assert person == Person(name="Alice", age=30)


# LangChain dumps the SDK's event with the parsed object in a field of another type.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_structured_output_streams(chat):
    """The streamed objects grow to the complete one."""
    parts = list(chat().with_structured_output(Person).stream(ALICE))

    assert parts[-1] == Person(name="Alice", age=30)


def test_function_calling_returns_an_object(chat):
    """with_structured_output() with a named tool, whose schema constrains the arguments."""
    model = chat().with_structured_output(Weather, method="function_calling")

    assert isinstance(model.invoke("What is the weather in Oslo?"), Weather)


def get_weather(city: Literal["Oslo", "Lima"]) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


def get_time(city: Literal["Oslo", "Lima"]) -> str:
    """The time in a city."""
    return f"It is noon in {city}."


CIRCLE = images.data_url(images.red_circle())
IN_ITS_OWN_FORM = {
    "type": "image",
    "base64": CIRCLE.partition(",")[2],
    "mime_type": "image/png",
}


@pytest.mark.parametrize(
    "image", [images.part(images.red_circle()), IN_ITS_OWN_FORM], ids=["OpenAI's", "LangChain's"]
)
def test_model_sees_an_image(chat, image):
    """In OpenAI's form, and in LangChain's own, which it translates."""
    from langchain_core.messages import HumanMessage

    question = {"type": "text", "text": "What colour is the circle?"}

    answer = chat(model="demo-vision").invoke([HumanMessage([image, question])])

    assert "red" in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_agent_loop_with_two_tools(chat, stream):
    """The model calls a tool, reads its result, and answers if it may not call again."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    tools = {each.name: each for each in map(tool, (get_weather, get_time))}
    model = chat(max_tokens=64, streaming=stream)
    history: list[Any] = [HumanMessage("What is the weather in Oslo?")]

    called = model.bind_tools(list(tools.values()), tool_choice="any").invoke(history)
    history.append(called)
    history += [tools[call["name"]].invoke(call) for call in called.tool_calls]
    answer = model.bind_tools(list(tools.values()), tool_choice="none").invoke(history)

    assert called.tool_calls
    assert all(message.content for message in history if isinstance(message, ToolMessage))
    assert (answer.tool_calls, bool(answer.text)) == ([], True)


def test_system_message_of_an_o_model_has_the_developer_role(chat):
    """LangChain sends `developer` to models named o1; the template supports that role."""
    from langchain_core.messages import SystemMessage

    answer = chat(model="o1", temperature=1).invoke([SystemMessage("Be brief."), ("user", "Well?")])

    assert answer.text == "yes"


def test_context_overflow_has_a_code(chat):
    """LangChain detects an overflow by its code, if the SDK still exposes the body."""
    with pytest.raises(openai.BadRequestError) as caught:
        chat().invoke("word " * 5000)

    assert caught.value.code == "context_length_exceeded"


@pytest.fixture
def embeddings(
    url: str, connections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., "OpenAIEmbeddings"]:
    """Returns an embeddings model; tiktoken finds its vocabulary offline."""
    from langchain_openai import OpenAIEmbeddings

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))

    def make(**options: Any) -> OpenAIEmbeddings:
        return OpenAIEmbeddings(openai_api_base=url, model="minilm", **connections, **options)

    return make


def test_tiktoken_ids_are_accepted(embeddings):
    """By default LangChain sends token ids of cl100k_base as arrays of integers."""
    vectors = embeddings().embed_documents(["a b c", "d e"])

    assert [len(vector) for vector in vectors] == [384, 384]


def test_token_id_beyond_the_vocabulary_is_refused(embeddings):
    """An id beyond the model's vocabulary is a 400 with the reason, never a meaningless vector."""
    with pytest.raises(openai.BadRequestError, match="token"):
        embeddings().embed_documents(["antidisestablishmentarianism \N{SNOWMAN}"])


def test_texts_are_embedded_as_texts(embeddings):
    """With check_embedding_ctx_length off, the similar sentence is the closer one."""
    model = embeddings(check_embedding_ctx_length=False)

    cat, kitten, rates = model.embed_documents(
        ["A cat sleeps on the sofa.", "On the couch a cat is asleep.", "Rates rose by a point."]
    )

    assert dot(cat, kitten) > 0.7 > 0.3 > dot(cat, rates)


def test_empty_text_has_a_vector(embeddings):
    """For a text without tokens, LangChain requests the vector of "" alone."""
    assert len(embeddings().embed_query("")) == 384


def test_empty_text_in_a_list_has_a_vector(embeddings):
    """An empty chunk does not fail the other documents."""
    vectors = embeddings(check_embedding_ctx_length=False).embed_documents(["a", ""])

    assert [len(vector) for vector in vectors] == [384, 384]


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
