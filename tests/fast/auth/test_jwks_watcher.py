import asyncio
import http.server
import logging
import threading

import pytest

from openai_frontend.auth import jwks_watcher
from openai_frontend.auth.api_keys import digest_of
from openai_frontend.auth.jwks_watcher import JWKSWatcher
from openai_frontend.auth.jwt_verifier import JWTVerifier
from openai_frontend.errors import NotAuthenticated
from openai_frontend.runtime.heartbeat import Heartbeat
from tests.fast.auth.tokens import AUDIENCE, ISSUER, jwks, token


class Provider(http.server.ThreadingHTTPServer):
    """Answers every request with a status and its keys."""

    daemon_threads = True
    status, keys = 200, jwks()
    asked = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/keys"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self):
        self.server.asked += 1
        self.send_response(self.server.status)
        self.send_header("location", "/elsewhere")
        self.end_headers()
        self.wfile.write(self.server.keys)

    def log_message(self, *args):
        pass


@pytest.fixture
def provider():
    server = Provider(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tokens():
    return JWTVerifier(issuer=ISSUER, audience=AUDIENCE)


def opens(tokens, given=None):
    sent = given or token()
    try:
        return tokens.verify(sent, digest_of(sent)).key.name
    except NotAuthenticated:
        return None


@pytest.mark.parametrize("where", ["file", "address"])
async def test_file_and_url_sources(where, provider, tokens, tmp_path):
    """Before the keys are loaded, no token is valid."""
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks())
    watched = JWKSWatcher(str(path) if where == "file" else provider.url, tokens)
    assert opens(tokens) is None

    await watched.refresh()
    assert opens(tokens) == "jwt:alice"


TROUBLE = [(500, jwks()), (302, jwks()), (200, b"<html>"), (200, b"x" * 1_048_577)]


@pytest.mark.parametrize(("status", "keys"), TROUBLE, ids=range(len(TROUBLE)))
async def test_failure_keeps_the_previous_keys(status, keys, provider, tokens, caplog):
    """It is logged once; redirects are not followed."""
    watched = JWKSWatcher(provider.url, tokens)
    await watched.refresh()
    provider.status, provider.keys = status, keys
    for _ in range(2):
        await watched.refresh()

    assert (opens(tokens), provider.asked) == ("jwt:alice", 3)
    [line] = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert line.startswith(f"{provider.url}: ")
    provider.status, provider.keys = 200, jwks("RS256")
    await watched.refresh()
    assert opens(tokens) is None


async def test_unreachable_provider(tokens, caplog):
    """No token is valid, and the server retries."""
    watched = JWKSWatcher("http://127.0.0.1:1/keys", tokens)

    await watched.refresh()
    assert opens(tokens) is None
    assert "the previous signing keys stay in force" in caplog.text


async def test_unknown_key_id_triggers_a_fetch(provider, tokens, monkeypatch):
    """Without waiting for the next poll."""
    monkeypatch.setattr(jwks_watcher, "UNKNOWN_KEY_COOLDOWN_S", 0.0)
    provider.keys = jwks("RS256")
    watched = JWKSWatcher(provider.url, tokens)
    following = asyncio.create_task(watched.watch(Heartbeat(), 3600))
    async with asyncio.timeout(30):
        while opens(tokens, token(algorithm="RS256")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        provider.keys = jwks()
        while opens(tokens) is None:  # noqa: ASYNC110  a thread reads the keys
            await asyncio.sleep(0.005)
    following.cancel()

    assert provider.asked >= 2


async def test_unknown_key_ids_have_a_cooldown(provider, tokens):
    watched = JWKSWatcher(provider.url, tokens)
    following = asyncio.create_task(watched.watch(Heartbeat(), 3600))
    async with asyncio.timeout(30):
        while opens(tokens) is None:  # noqa: ASYNC110  a thread reads the keys
            await asyncio.sleep(0.005)
    asked = provider.asked
    for kid in range(20):
        assert opens(tokens, token(kid=str(kid))) is None
        await asyncio.sleep(0.002)
    following.cancel()

    assert provider.asked == asked


@pytest.mark.parametrize("source", ["http://issuer.test/keys", "ftp://127.0.0.1/keys", "file:///x"])
def test_url_without_tls_is_rejected(source, tokens):
    """An attacker on the network could replace the keys."""
    with pytest.raises(ValueError, match="neither a file nor an https URL"):
        JWKSWatcher(source, tokens)
