import contextlib
import json
import time
import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.auth.api_keys import ApiKeys
from openai_frontend.auth.authorization import Authorizer
from openai_frontend.middleware.authentication import Authentication
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.request_context.context import RequestContext, current, current_request
from tests.cpu_time import budget
from tests.examples import scaled
from tests.fast.auth.key_files import key
from tests.fast.middleware.asgi import call, echo

KEYS = ApiKeys([key("a"), key("\u00e4", secret="\u00e4"), key("few", requests_per_minute=1)])


def guarded(app=echo, area="inference", keys=KEYS, public_scopes=()):
    return RequestId(
        Authentication(
            app,
            authorizer=Authorizer(keys, public_scopes),
            route_scope_of=lambda scope: area,
        )
    )


def authorization(*values):
    return [(b"authorization", value) for value in values]


OPENING = [
    authorization(b"Bearer a"),
    authorization(b"bearer a"),
    authorization(b"BEARER  a "),
    authorization(b"Bearer a", b"Bearer a"),
    authorization("Bearer \u00e4".encode()),
    [(b"x-api-key", b"a")],
    [(b"api-key", b"a")],
    [(b"api-key", b"other"), *authorization(b"Bearer a")],
]


@pytest.mark.parametrize("headers", OPENING, ids=str)
async def test_key_headers(headers):
    """The scheme is case-insensitive; headers of other APIs work too."""
    sent = await call(guarded(), headers=headers)

    assert sent.status == 200


REFUSED = [
    [],
    authorization(b""),
    authorization(b"a"),
    authorization(b"Bearer"),
    authorization(b"Bearer "),
    authorization(b"Bearera"),
    authorization(b"Bearer\ta"),
    authorization(b"Bearer b"),
    authorization(b"Bearer A"),
    authorization(b"Bearer a,Bearer a"),
    authorization(b"Bearer a b"),
    authorization(b"Basic YTph"),
    authorization(b"Bearer a\x00"),
    authorization(b"Bearer \xe4"),
    authorization(b"Bearer \xff\xfe"),
    authorization(b"Bearer " + b"a" * 1_000_000),
    authorization(b"\x00" * 1_000_000),
    authorization(b"Bearer a", b"Bearer b"),
    authorization(b"Bearer b", b"Bearer a"),
    [*authorization(b"Bearer b"), (b"x-api-key", b"a")],
    [(b"x-api-key", b"a"), (b"api-key", b"b")],
    [(b"x-api-key", b"Bearer a")],
    [(b"cookie", b"a"), (b"proxy-authorization", b"Bearer a")],
]


@pytest.mark.parametrize("headers", REFUSED, ids=range(len(REFUSED)))
async def test_invalid_key_is_401(headers):
    """The envelope is OpenAI's, and the body is not read."""
    sent = await call(guarded(), headers=headers, body=[])

    error = json.loads(sent.body)["error"]
    assert (sent.status, sent.headers["www-authenticate"]) == (401, "Bearer")
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")


NAMES = st.sampled_from([b"authorization", b"x-api-key", b"api-key", b"cookie"])
VALUES = st.binary(max_size=40) | st.binary(max_size=20).map(lambda rest: b"Bearer " + rest)


@settings(max_examples=scaled(200), deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=4))
async def test_random_headers_never_authenticate(headers):
    keys = ApiKeys([key("a", secret="sk-what-nobody-guesses")])

    sent = await call(guarded(keys=keys), headers=headers, body=[])
    assert sent.status == 401


async def test_route_without_a_scope_is_denied():
    sent = await call(guarded(area=None), headers=authorization(b"Bearer a"))

    assert sent.status == 403


async def test_public_route():
    """It needs no key, and ignores an invalid one."""
    app = guarded(area="health", public_scopes={"health"})

    without = await call(app)
    with_a_bad_one = await call(app, headers=authorization(b"Bearer b"))
    assert (without.status, with_a_bad_one.status) == (200, 200)


@pytest.mark.parametrize("kind", ["websocket", "webtransport"])
async def test_other_protocols_are_dropped(kind):
    """The server speaks none of them."""
    reached = []

    async def app(scope, receive, send):
        reached.append(scope["type"])

    await guarded(app)({"type": kind, "path": "/", "headers": []}, None, None)
    await guarded(app)({"type": "lifespan"}, None, None)
    assert reached == ["lifespan"]


async def test_rate_limited_request_is_429():
    """With OpenAI's message and headers."""
    keys = ApiKeys([key("few", requests_per_minute=6, tokens_per_minute=600)])
    app = guarded(keys=keys)
    first = await call(app, headers=authorization(b"Bearer few"))
    for _ in range(5):
        await call(app, headers=authorization(b"Bearer few"))
    refused = await call(app, headers=authorization(b"Bearer few"))

    assert (first.status, refused.status) == (200, 429)
    assert first.headers["x-ratelimit-limit-requests"] == "6"
    assert first.headers["x-ratelimit-remaining-requests"] == "5"
    assert first.headers["x-ratelimit-reset-requests"] == "10s"
    assert first.headers["x-ratelimit-remaining-tokens"] == "600"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 9 <= int(refused.headers["retry-after"]) <= 10
    assert 9000 <= int(refused.headers["retry-after-ms"]) <= 10_000
    error = json.loads(refused.body)["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")


async def test_only_inference_is_rate_limited():
    keys = ApiKeys([key("few", requests_per_minute=1)])

    got = [
        await call(guarded(area="models", keys=keys), headers=authorization(b"Bearer few"))
        for _ in range(3)
    ]
    assert [each.status for each in got] == [200, 200, 200]
    assert "x-ratelimit-limit-requests" not in got[0].headers


@pytest.mark.parametrize("failure", [None, ValueError("x")])
async def test_slot_is_released_at_the_end_of_the_request(failure):
    """However the request ends."""
    keys = ApiKeys([key("one", max_concurrent_requests=1)])
    headers = authorization(b"Bearer one")
    inner = []

    async def app(scope, receive, send):
        inner.append(await call(guarded(keys=keys), headers=headers))
        if failure is not None:
            raise failure
        await echo(scope, receive, send)

    outer = guarded(app, keys=keys)
    for _ in range(2):
        if failure is None:
            assert (await call(outer, headers=headers)).status == 200
        else:
            with pytest.raises(ValueError, match="x"):
                await call(outer, headers=headers)

    assert [each.status for each in inner] == [429, 429]
    assert keys.authenticate(b"one").rate_limiter.running == 0


async def test_request_counts_until_triton_releases_it():
    keys = ApiKeys([key("one", max_concurrent_requests=1)])
    headers = authorization(b"Bearer one")
    deferred = []

    async def app(scope, receive, send):
        deferred.append(current_request().deferred_release)
        deferred[-1].retain()
        await echo(scope, receive, send)

    first = await call(guarded(app, keys=keys), headers=headers)
    second = await call(guarded(app, keys=keys), headers=headers)
    deferred[0].release()
    third = await call(guarded(app, keys=keys), headers=headers)

    assert [each.status for each in (first, second, third)] == [200, 429, 200]


def test_cost_per_request():
    """Authenticating and counting a request with one of 1,000 keys takes about 9 us of CPU."""
    keys = ApiKeys([key(str(number), requests_per_minute=10**9) for number in range(1000)])
    browser = [(b"x-%d" % number, b"value") for number in range(12)]
    start = {"type": "http.response.start", "status": 200, "headers": []}

    async def app(scope, receive, send):
        await send(start)

    async def nowhere(message):
        pass

    authorizer = Authorizer(keys, ())
    access = Authentication(app, authorizer=authorizer, route_scope_of=lambda _: "inference")
    headers = [*browser, *authorization(b"Bearer 7")]

    def ask():
        scope = {"type": "http", "headers": headers}
        start["headers"] = []
        with contextlib.suppress(StopIteration):
            access(scope, None, nowhere).send(None)  # type: ignore[arg-type]

    token = current.set(RequestContext("req_1"))
    cost_s = min(timeit.repeat(ask, number=200, repeat=200, timer=time.process_time)) / 200
    current.reset(token)
    assert cost_s < budget(10e-6)
