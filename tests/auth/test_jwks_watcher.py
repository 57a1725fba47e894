import asyncio
import http.server
import logging
import threading

import pytest

from openai_frontend.auth import jwks_watcher
from openai_frontend.auth.jwks_watcher import JWKSWatcher
from openai_frontend.auth.jwt_verifier import JWTVerifier
from openai_frontend.auth.keys import digest_of
from openai_frontend.errors import NotAuthenticated
from tests.auth.tokens import AUDIENCE, ISSUER, jwks, token


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
async def test_where_keys_are(where, provider, tokens, tmp_path):
    """In a file, or at an address; before they are there nothing opens."""
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks())
    watched = JWKSWatcher(str(path) if where == "file" else provider.url, tokens)
    assert opens(tokens) is None

    await watched.refresh()
    assert opens(tokens) == "jwt:alice"


TROUBLE = [(500, jwks()), (302, jwks()), (200, b"<html>"), (200, b"x" * 1_048_577)]


@pytest.mark.parametrize(("status", "keys"), TROUBLE, ids=range(len(TROUBLE)))
async def test_trouble(status, keys, provider, tokens, caplog):
    """The keys stay as they were, which one line says once; nobody is sent elsewhere for them."""
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


async def test_a_provider_that_is_away(tokens, caplog):
    """The server runs, opens to no token, and tries again."""
    watched = JWKSWatcher("http://127.0.0.1:1/keys", tokens)

    await watched.refresh()
    assert opens(tokens) is None
    assert "the previous signing keys stay in force" in caplog.text


async def test_a_new_signing_key(provider, tokens, monkeypatch):
    """A token that names it brings it in, without waiting for the next look."""
    monkeypatch.setattr(jwks_watcher, "UNKNOWN_KEY_COOLDOWN_S", 0.0)
    provider.keys = jwks("RS256")
    watched = JWKSWatcher(provider.url, tokens)
    following = asyncio.create_task(watched.watch(3600))
    async with asyncio.timeout(10):
        while opens(tokens, token(algorithm="RS256")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        provider.keys = jwks()
        while opens(tokens) is None:  # noqa: ASYNC110  a thread reads the keys
            await asyncio.sleep(0.005)
    following.cancel()

    assert provider.asked >= 2


async def test_unknown_signing_keys(provider, tokens):
    """They do not send us to the provider again and again."""
    watched = JWKSWatcher(provider.url, tokens)
    following = asyncio.create_task(watched.watch(3600))
    async with asyncio.timeout(10):
        while opens(tokens) is None:  # noqa: ASYNC110  a thread reads the keys
            await asyncio.sleep(0.005)
    asked = provider.asked
    for kid in range(20):
        assert opens(tokens, token(kid=str(kid))) is None
        await asyncio.sleep(0.002)
    following.cancel()

    assert provider.asked == asked


@pytest.mark.parametrize("source", ["http://issuer.test/keys", "ftp://127.0.0.1/keys", "file:///x"])
def test_addresses_without_tls(source, tokens):
    """Somebody on the way could say who may come in."""
    with pytest.raises(ValueError, match="neither a file nor an https URL"):
        JWKSWatcher(source, tokens)
