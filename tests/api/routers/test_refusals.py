"""Every rejection over a real socket has the same envelope, a request id and a log line."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.api.routers.mock_gateway import exchange, mock_gateway, request
from tests.gateway_process import GatewayProcess

CHAT = "POST /v1/chat/completions"
JSON = "content-type: application/json"
BODY = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}]}).encode()
MAX_BODY = 100_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("refusals")
    options = f"--max-body-bytes={MAX_BODY}", "--access-log", "--replica-name=replica-1"
    with mock_gateway(folder, *options) as process:
        yield process


def chat(body: bytes, *headers: str) -> bytes:
    return request(CHAT, JSON, *headers, body=body)


def field(name: str, value: str) -> bytes:
    """A chat with one more field, whose value is sent unchanged."""
    return chat(BODY[:-1] + f', "{name}": {value}}}'.encode())


REFUSED = {
    "no HTTP": (b"hello\r\n\r\n", 400, "invalid_http"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_http"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50, 400, "invalid_http"),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", 400, "invalid_http"),
    "letters in the path": (request("GET /v1/mod\xe9ls"), 400, "invalid_http"),
    "two lengths": (chat(BODY, "content-length: 7"), 400, "invalid_http"),
    "length and chunks": (chat(BODY, "transfer-encoding: chunked"), 400, "invalid_http"),
    "large head": (request("GET /", "x: " + "x" * 70_000), 431, "request_headers_too_large"),
    "many headers": (request("GET /", *["x: 1"] * 200), 431, "request_headers_too_large"),
    "large body": (chat(b" " * (MAX_BODY + 1)), 413, "request_too_large"),
    "compressed": (chat(BODY, "content-encoding: gzip"), 415, "unsupported_content_encoding"),
    "form": (
        request(CHAT, "content-type: application/x-www-form-urlencoded", body=BODY),
        415,
        "unsupported_content_type",
    ),
    "unknown path": (request("GET /v1/nothing"), 404, "unknown_url"),
    "slashes at the end": (request(CHAT + "//", JSON, body=BODY), 404, "unknown_url"),
    "two slashes": (request(CHAT.replace("/v1", "//v1"), JSON, body=BODY), 404, "unknown_url"),
    "capitals": (request(CHAT.replace("v1", "V1"), JSON, body=BODY), 404, "unknown_url"),
    "braces": (request("GET /{0.__class__}"), 404, "unknown_url"),
    "asterisk": (request("OPTIONS *"), 404, "unknown_url"),
    "GET": (request("GET /v1/chat/completions"), 405, "method_not_supported"),
    "OPTIONS": (request("OPTIONS /v1/chat/completions"), 405, "method_not_supported"),
    "PUT": (request("PUT /v1/models"), 405, "method_not_supported"),
    "override": (
        request("GET /v1/chat/completions", "x-http-method-override: POST"),
        405,
        "method_not_supported",
    ),
    "WebSocket": (
        request(
            "GET /v1/chat/completions",
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        405,
        "method_not_supported",
    ),
    "bytes in an id": (request("GET /v1/models/%ff%00"), 404, "model_not_found"),
    "no percent code": (request("GET /v1/models/%zz"), 404, "model_not_found"),
    "dots": (request("GET /v1/models/%2e%2e/%2e%2e/etc/passwd"), 404, "model_not_found"),
    "empty body": (chat(b""), 400, "json_invalid"),
    "half a body": (chat(BODY[:-1]), 400, "json_invalid"),
    "UTF-16": (chat(BODY.decode().encode("utf-16")), 400, "json_invalid"),
    "long address": (request("GET /" + "x" * 9000), 414, "request_url_too_long"),
    "no UTF-8": (chat(BODY.replace(b"hi", b"\xff")), 400, "json_invalid"),
    "lone surrogate": (chat(BODY.replace(b"hi", rb"\ud800")), 400, "json_invalid"),
    "array": (chat(b"[]"), 400, "invalid_type"),
    "deep arrays": (chat(b"[" * 50_000), 400, "json_invalid"),
    "deep objects": (chat(b'{"a":' * 10_000), 400, "json_invalid"),
    "NaN": (field("temperature", "NaN"), 400, "json_invalid"),
    "infinite": (field("temperature", "1e999"), 400, "invalid_value"),
    "long integer": (field("seed", "9" * 5000), 400, "json_invalid"),
    "integer above 2**53": (field("max_tokens", str(2**53 + 1)), 400, "integer_above_max_value"),
    "integer above 2**64": (field("n", str(2**64)), 400, "integer_above_max_value"),
    "temperature": (field("temperature", "2.5"), 400, "decimal_above_max_value"),
    "unknown model": (chat(BODY.replace(b"mock", b"other")), 404, "model_not_found"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.slow
def test_every_rejection_has_the_openai_envelope_and_an_id(gateway, name):
    """Whichever layer rejects it. The content type is JSON, and a header names the replica."""
    sent, status, code = REFUSED[name]

    response = exchange(gateway.port, sent)

    assert (status, code) == (response.status, response.error["code"])
    assert set(response.error) == {"message", "type", "param", "code"}
    assert response.error["type"] == "invalid_request_error"
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["x-served-by"] == "replica-1"
    assert len(response.body) == int(response.headers["content-length"])


@pytest.mark.slow
def test_server_works_after_all_rejections(gateway):
    response = exchange(gateway.port, chat(BODY))

    assert response.status == 200


@pytest.mark.slow
def test_405_names_the_allowed_method(gateway):
    response = exchange(gateway.port, request("OPTIONS /v1/chat/completions"))

    assert response.headers["allow"] == "POST"


@pytest.mark.slow
def test_head_has_the_headers_of_get_and_no_body(gateway):
    """`content-length` has the length of GET's body, and a header names the replica."""
    head = exchange(gateway.port, request("HEAD /v1/models"))
    got = exchange(gateway.port, request("GET /v1/models"))

    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]
    assert head.headers["x-served-by"] == got.headers["x-served-by"] == "replica-1"


@pytest.mark.slow
def test_head_of_a_post_route_is_405_without_a_body(gateway):
    response = exchange(gateway.port, request("HEAD /v1/chat/completions"))

    assert (response.status, response.body) == (405, b"")


@pytest.mark.slow
def test_utf8_byte_order_mark_is_ignored(gateway):
    response = exchange(gateway.port, chat(b"\xef\xbb\xbf" + BODY))

    assert response.status == 200


@pytest.mark.slow
def test_http_1_0_request_needs_no_host_header(gateway):
    response = exchange(gateway.port, b"GET /v1/models HTTP/1.0\r\n\r\n")

    assert response.status == 200


@pytest.mark.slow
def test_trailing_slash_needs_no_redirect(gateway):
    response = exchange(gateway.port, request(CHAT + "/", JSON, body=BODY))

    assert response.status == 200


@pytest.mark.slow
def test_upgrade_to_http2_is_ignored(gateway):
    """Java's client offers it with each request."""
    response = exchange(gateway.port, chat(BODY, "connection: upgrade", "upgrade: h2c"))

    assert response.status == 200


@pytest.mark.slow
def test_last_value_of_a_repeated_field_is_used(gateway):
    """As in OpenAI's parser and Python's."""
    body = BODY[:-1] + b', "model": "other"}'

    response = exchange(gateway.port, chat(body))

    assert response.error["message"].startswith("The model 'other' does not exist.")


@pytest.mark.parametrize("line", ["GET /nothing", "GET /v1/models", "GET /health/live"])
@pytest.mark.slow
def test_request_id_of_the_client_is_in_response_and_log(gateway, line):
    """In the access log, whatever the response."""
    given = f"mine-{line.split('/')[-1]}"

    response = exchange(gateway.port, request(line, f"x-request-id: {given}"))

    assert response.headers["x-request-id"] == given
    gateway.wait_for_line(f"INFO [{given}] openai_frontend.access_log")


@pytest.mark.slow
def test_warnings_about_a_request_have_its_id(gateway):
    body = {**json.loads(BODY), "nobodys_field": 1}
    headers = {"x-request-id": "abc-7"}

    response = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)

    assert response.headers["x-request-id"] == "abc-7"
    gateway.wait_for_line("WARNING [abc-7] openai_frontend")
