"""The gateway never connects to an address in a request (CVE-2025-6242, CVE-2026-24779). It fetches
nothing, so redirects, DNS rebinding and URL parser tricks have no effect. If an operator allows
hosts from which media is fetched, it connects to nothing else.

tests/api/backends/test_images.py shows that no model gets an address either, and
tests/medium/media/test_fetch.py how redirects and DNS rebinding fail.
"""

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.security.guarded import (
    CHAT,
    EMBEDDINGS,
    Guarded,
    check_refused,
    guarded_gateway,
    unharmed,
)


class Listener:
    """Counts connections to a port of this machine."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self.port = self._socket.getsockname()[1]
        self.connections = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            self.connections += 1
            connection.close()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    started = Listener()
    yield started
    started.close()


@pytest.fixture(scope="module")
def fetching_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("fetching")
    allowed = [f"--allowed-media-domains={each}" for each in ("media.invalid", "*.cdn.invalid")]
    with guarded_gateway(folder, *allowed) as started:
        yield started


@pytest.fixture
def fetching(fetching_process: Guarded) -> Iterator[Guarded]:
    """A gateway that may fetch from two names, which nobody can have."""
    with unharmed(fetching_process) as each:
        yield each


def addresses(port: int) -> list[str]:
    """The port on this machine, in spellings that have bypassed filters."""
    return [
        f"http://127.0.0.1:{port}/x.png",
        f"http://localhost:{port}/",
        f"http://[::ffff:7f00:1]:{port}/",
        f"http://a\\@127.0.0.1:{port}/",
        f"http://example.com#@127.0.0.1:{port}/",
        f"http://2130706433:{port}/",
        f"http://0x7f.1:{port}/",
        f"http://127.0.0.%31:{port}/",
        f"http://user:password@127.0.0.1.:{port}/",
        f"ftp://127.0.0.1:{port}/",
        f"data:image/png,http://127.0.0.1:{port}/",
        f"data:image/png;base64,http://127.0.0.1:{port}/",
        f"//127.0.0.1:{port}/x",
        f"https://127.0.0.1:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "file:/etc/passwd",
        "/etc/passwd",
        "../../etc/passwd",
        "data:/etc/passwd",
        "data:image/png;base64,/etc/passwd",
        "data:image/png;base64,AAAA",
    ]


def parts(address: str) -> list[dict[str, object]]:
    return [
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "image_url", "image_url": address},
        {"type": "video_url", "video_url": {"url": address}},
        {"type": "audio_url", "audio_url": {"url": address}},
        {"type": "input_audio", "input_audio": {"data": address, "format": "wav"}},
        {"type": "file", "file": {"file_data": address, "file_id": address}},
    ]


@pytest.mark.parametrize("model", ["mock", "vision"])
def test_content_parts_with_an_address_get_400(guarded, listener, model):
    """The gateway does not connect to the address, whether the model takes images or not."""
    for address in addresses(listener.port):
        for part in parts(address):
            messages = [{"role": "user", "content": [part]}]
            response = guarded.post(CHAT, {"model": model, "messages": messages})
            check_refused(response, echoed=address)

    assert listener.connections == 0


def disguised(port: int) -> list[str]:
    """The port on this machine, beside the name of an allowed host."""
    return [
        f"https://media.invalid@127.0.0.1:{port}/",
        f"https://media.invalid:{port}@127.0.0.1/",
        f"https://127.0.0.1:{port}\\@media.invalid/",
        f"https://127.0.0.1:{port}#@media.invalid/",
        f"https://127.0.0.1:{port}?@media.invalid/",
        f"https://127.0.0.1:{port}/media.invalid",
        f"https://media.invalid:{port}/",
        f"https://media.invalid\r\nhost: 127.0.0.1:{port}/",
        f"https://localhost:{port}/.cdn.invalid",
        f"http://media.invalid:{port}/",
        "https://media.invalid./",
        "https://other.invalid/",
        "https://cdn.invalid/",
        "https://media.invalid.other.invalid/",
    ]


@pytest.mark.parametrize("model", ["mock", "vision"])
def test_hosts_that_are_not_allowed_are_not_reached(fetching, listener, model):
    """Every request gets 400 and an error that names none of the allowed hosts. Those cannot be
    resolved.
    """
    allowed = ["https://media.invalid/a.png", "https://a.cdn.invalid/"]
    for address in [*addresses(listener.port), *disguised(listener.port), *allowed]:
        for part in parts(address):
            messages = [{"role": "user", "content": [part]}]
            response = fetching.post(CHAT, {"model": model, "messages": messages})
            check_refused(response, echoed=address)
            assert b".invalid" not in response.body
            reached = model == "vision" and part["type"] in ("image_url", "audio_url")
            failed = b"could not be fetched" in response.body
            assert failed == (reached and address in allowed)

    assert listener.connections == 0


@pytest.mark.parametrize("path", [EMBEDDINGS, "/tokenize", f"{CHAT}/render"])
def test_other_endpoints_reach_no_host_either(fetching, listener, path):
    """All read media by the same code."""
    for address in [*addresses(listener.port), *disguised(listener.port)]:
        part = {"type": "image_url", "image_url": {"url": address}}
        body = {"model": "vision", "messages": [{"role": "user", "content": [part]}]}
        response = fetching.ask(f"POST {path}", json.dumps(body).encode())
        check_refused(response, echoed=address)

    assert listener.connections == 0


def test_schemas_with_an_external_reference_get_400(guarded, listener):
    """The gateway does not follow the reference."""
    for address in addresses(listener.port):
        for schema in ({"$ref": address}, {"$id": address, "properties": {"a": {"$ref": "b"}}}):
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            check_refused(guarded.post(CHAT, {"response_format": form}), echoed=address)

    assert listener.connections == 0


def test_model_names_that_are_addresses_are_unknown(guarded, listener):
    """The same holds for adapters and folders."""
    for address in addresses(listener.port):
        for path, fields in (
            (CHAT, {"model": address}),
            ("/v1/load_lora_adapter", {"lora_name": "mock:x", "lora_path": address}),
            ("/v2/repository/models/x/load", {"parameters": {"config": address}}),
        ):
            response = guarded.post(path, fields)
            assert response.status in (400, 404, 409), response
            check_refused(response, response.status, echoed=address)

    assert listener.connections == 0
