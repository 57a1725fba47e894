"""The OpenAPI document is valid, complete and matches what the routes read."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from openai_frontend.app import create_app
from openai_frontend.config.settings import Settings
from openai_frontend.routers.examples import EXAMPLES
from openai_frontend.routers.openapi import Document
from openai_frontend.triton import Options, Server

MODELS = {"generate": "writer", "embed": "embedder"}
STREAMS = {
    "/v1/chat/completions": "ChatCompletionChunk",
    "/v1/completions": "Completion",
    "/v1/messages": "MessageStreamEvent",
    "/v1/audio/transcriptions": "TranscriptTextDelta",
    "/v2/models/{model}/generate_stream": "GenerateResponse",
}
BODYLESS = {
    ("GET /v2/models/{model}/ready", "200"),
    ("POST /sleep", "200"),
    ("POST /wake_up", "200"),
    ("POST /v2/repository/models/{model}/load", "200"),
    ("POST /v2/repository/models/{model}/unload", "200"),
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = create_app(Settings(), Server(Options(model_repositories=[])))
    return Document(app).with_models(MODELS)


def test_concurrent_first_readers_get_the_whole_document(document: dict[str, Any]) -> None:
    """They all ask before it has been rendered."""
    app = create_app(Settings(), Server(Options(model_repositories=[])))
    fresh = Document(app)
    with ThreadPoolExecutor(8) as threads:
        read = list(threads.map(lambda _: fresh.with_models(MODELS), range(8)))

    assert all(each == document for each in read)


Operation = dict[str, Any]


def operations(document: dict[str, Any]) -> Iterator[tuple[str, Operation]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_document_is_valid_openapi_3_1(document):
    assert document["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(document).validate()


def test_every_reference_resolves(document):
    assert set(references(document)) <= set(document["components"]["schemas"])


def test_every_schema_is_used(document):
    assert set(document["components"]["schemas"]) == set(references(document))


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix("#/components/schemas/")
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


@pytest.mark.parametrize("key", ["summary", "description", "operationId", "tags"])
def test_every_operation_is_described(document, key):
    assert [name for name, operation in operations(document) if not operation.get(key)] == []


OPENAI = {
    "POST /v1/audio/speech": "createSpeech",
    "POST /v1/audio/transcriptions": "createTranscription",
    "POST /v1/audio/translations": "createTranslation",
    "POST /v1/chat/completions": "createChatCompletion",
    "POST /v1/completions": "createCompletion",
    "POST /v1/embeddings": "createEmbedding",
    "GET /v1/models": "listModels",
    "GET /v1/models/{id}": "retrieveModel",
}


def test_operation_ids_are_those_of_openai(document):
    """Generated clients get the same methods. Every other id is unique and in camel case."""
    ids = {name: operation["operationId"] for name, operation in operations(document)}

    assert ids | OPENAI == ids
    assert len(set(ids.values())) == len(ids)
    assert [
        each for each in ids.values() if not re.fullmatch("[a-z]+([A-Z0-9]+[a-z]*)*", each)
    ] == []


def test_titles_are_in_sentence_case(document):
    names = {"LoRA", "TEI's", "Jina's", "Cohere's"}
    for _, operation in operations(document):
        first, *rest = re.sub("[()]", "", operation["summary"]).split()
        assert first[0].isupper()
        assert [word for word in rest if not word.islower() and word not in names] == []


def test_description_names_the_base_url_and_the_key(document):
    assert "`base_url`" in document["info"]["description"]
    assert "Authorization: Bearer" in document["info"]["description"]


@pytest.mark.parametrize("path", ["/score", "/healthz", "/ping"])
def test_aliases_are_documented(document, path):
    assert path in document["paths"]


def test_every_response_has_a_schema(document):
    """Successes and errors. Some of KServe's and vLLM's successful responses have no body."""
    formless = [
        (name, status)
        for name, operation in operations(document)
        for status, response in operation["responses"].items()
        if (name, status) not in BODYLESS
        if not any(content.get("schema") for content in response.get("content", {}).values())
    ]
    assert formless == []


def test_every_operation_documents_its_errors(document):
    """In OpenAI's envelope, KServe's or Anthropic's. FastAPI's 422 appears nowhere."""
    envelopes = {"KServe": "KServeError", "Messages": "AnthropicErrorResponse"}
    for _, operation in operations(document):
        envelope = envelopes.get(operation["tags"][0], "ErrorResponse")
        schema = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
        assert schema["$ref"].split("/")[-1] == envelope
        assert "422" not in operation["responses"]


def test_every_response_documents_the_request_id_header(document):
    for _, operation in operations(document):
        for response in operation["responses"].values():
            assert "x-request-id" in response["headers"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/render"])
def test_chat_responses_document_the_adjusted_parameters_header(document, path):
    """Beside the headers of every response."""
    headers = document["paths"][path]["post"]["responses"]["200"]["headers"]

    assert {"x-adjusted-parameters", "x-request-id"} <= headers.keys()


@pytest.mark.parametrize("path", STREAMS)
def test_streaming_endpoints_document_their_events(document, path):
    content = document["paths"][path]["post"]["responses"]["200"]["content"]

    schema = content["text/event-stream"]["schema"]["contentSchema"]
    event = schema.get("anyOf", [schema])[0]["$ref"]
    assert STREAMS[path] == event.split("/")[-1]


def test_every_request_body_has_examples(document):
    """A new endpoint needs an example."""
    bodies = {
        name: operation["requestBody"]["content"]["application/json"]
        for name, operation in operations(document)
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    assert [name for name, body in bodies.items() if not body.get("examples")] == []


def test_every_example_has_an_endpoint(document):
    assert set(EXAMPLES) <= set(document["paths"])


def test_examples_name_a_served_model_with_the_right_task(document):
    body = document["paths"]["/v1/embeddings"]["post"]["requestBody"]
    examples = body["content"]["application/json"]["examples"].values()

    assert {example["value"]["model"] for example in examples} == {"embedder"}


def test_every_integer_of_a_request_has_limits(document):
    """So no value overflows 64 bits in a lower layer."""
    unbounded = [
        f"{name}.{'.'.join(path)}"
        for name, schema in document["components"]["schemas"].items()
        if name.endswith(("Request", "Param", "Options", "Detection"))
        for path, part in parts(schema)
        if part.get("type") == "integer"
        and not {"minimum", "maximum"} <= set(part)
        and path[-1] != "chat_template_kwargs"  # defined by the template, not by us
    ]
    assert unbounded == []


def parts(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every schema within a schema, with the properties that lead to it."""
    if isinstance(schema, list):
        for each in schema:
            yield from parts(each, path)
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key, value in schema.items():
        if key == "properties":
            for name, each in value.items():
                yield from parts(each, (*path, name))
        else:
            yield from parts(value, path)
