"""Limits request bodies: size, memory of all bodies together, content type."""

import asyncio
import contextlib
from collections.abc import Awaitable, Container, Mapping
from types import MappingProxyType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.admission.memory_budget import MemoryBudget
from openai_frontend.errors import RequestTooLarge
from openai_frontend.middleware.authentication import RouteScopeOf
from openai_frontend.middleware.error_responses import error_form, send_error
from openai_frontend.serving.error_reply import ErrorReply, http_error

# If the connection closes while a client is still sending, the client may never read the response
# and retries. So the rest of the body is read and dropped, up to a size and a time.
DROPPED_SHARE = 4  # times the body limit
DROP_TIMEOUT_S = 10.0


class BodyLimit:
    """Counts bytes as they arrive: Content-Length may be missing. Raises RequestTooLarge.

    A body counts until its response ends.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body_bytes: int,
        budget: MemoryBudget,
        larger: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`larger`: the limits of paths that have their own."""
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._larger = larger
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._larger.get(scope["path"], self._max_body_bytes)
        body = _Body(receive, limit, self._budget)
        try:
            body.check(int(_header(scope, b"content-length") or 0))
            await self._app(scope, body.receive, send)
        except RequestTooLarge:
            if _header(scope, b"expect") is None:  # else the client waits for 100 Continue
                await body.drop_rest()
            raise
        finally:
            body.release()


class _Body:
    """The body of one request, counted while it arrives."""

    def __init__(self, receive: Receive, max_bytes: int, budget: MemoryBudget) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._budget = budget
        self._counted = 0
        self._received = 0
        self._more = True

    async def receive(self) -> Message:
        message = await self._receive()
        length = len(message.get("body", b""))
        self._received += length
        self._more = message.get("more_body", False)
        self.check(self._received)
        self._budget.take(length)
        self._counted += length
        return message

    def release(self) -> None:
        self._budget.give_back(self._counted)

    async def drop_rest(self) -> None:
        limit = self._max_bytes * (1 + DROPPED_SHARE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROP_TIMEOUT_S):
                while self._more and self._received <= limit:
                    message = await self._receive()
                    self._received += len(message.get("body", b""))
                    self._more = message.get("more_body", False)

    def check(self, length: int) -> None:
        if length > self._max_bytes:
            message = f"The request body is larger than {self._max_bytes} bytes."
            raise RequestTooLarge(message)


# Tensors may follow the JSON of a hosting platform. A page needs CORS preflight for these types too
_JSON_TYPES = frozenset(
    {
        b"application/json",
        b"application/vnd.sagemaker-triton.binary+json",
        b"application/vnd.vertex-ai-triton.binary+json",
    }
)
_KSERVE_TYPES = _JSON_TYPES | {b"application/octet-stream"}
_FORM = b"application/x-www-form-urlencoded"
_MULTIPART = b"multipart/form-data"

_CONTENT_TYPE = http_error(
    415,
    "Unsupported Content-Type: send the request body as JSON "
    "(with curl: -H 'Content-Type: application/json').",
    "unsupported_content_type",
)
_KSERVE_CONTENT_TYPE = http_error(
    415,
    "Unsupported Content-Type: send the request body as JSON "
    "(with curl: -H 'Content-Type: application/json'), or as 'application/octet-stream' if "
    "tensors follow the JSON.",
    "unsupported_content_type",
)


_FORM_CONTENT_TYPE = http_error(
    415,
    "Unsupported Content-Type: send the request body as 'multipart/form-data'; from a web page, "
    "with the header 'Authorization'.",
    "unsupported_content_type",
)


class ContentType:
    """Rejects bodies whose Content-Type is not JSON, which most of OpenAI's endpoints expect.

    A web page can send forms, plain text and bytes without a Content-Type to any server without
    CORS preflight, but not JSON. So a page that a user visits cannot use a gateway that only this
    user can reach.

    KServe's protocol also has binary bodies, which pages cannot send either. `curl -d`, as Triton's
    documentation uses it, declares its JSON as a form: KServe's paths accept it unless a browser
    sent it, which a browser reveals by its headers. A missing Content-Type is accepted, from
    a browser only with an Authorization header, or from the gateway's own /docs.

    Paths of forms take `multipart/form-data` alone. A page cannot send it with an Authorization
    header without CORS preflight; from a browser, it needs one, whatever its value.
    """

    def __init__(
        self, app: ASGIApp, *, route_scope_of: RouteScopeOf, forms: Container[str] = ()
    ) -> None:
        """`forms`: the paths that take forms instead of JSON."""
        self._app = app
        self._forms = forms
        self._route_scope_of = route_scope_of

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since most requests pass."""
        takes_form = scope["type"] == "http" and scope["path"] in self._forms
        rejection = _form_error(scope) if takes_form else _content_type_error(scope)
        if rejection is None or self._route_scope_of(scope) == "nowhere":  # the router answers 404
            return self._app(scope, receive, send)
        return send_error(scope, send, rejection)


def _content_type_error(scope: Scope) -> ErrorReply | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    content_type = _content_type(scope)
    if content_type in _JSON_TYPES or (content_type is None and not _is_from_foreign_page(scope)):
        return None
    if error_form(scope) != "kserve":
        return _CONTENT_TYPE
    accepted = content_type in _KSERVE_TYPES or (
        content_type == _FORM and not _is_from_browser(scope)
    )
    return None if accepted else _KSERVE_CONTENT_TYPE


def _form_error(scope: Scope) -> ErrorReply | None:
    if scope["method"] != "POST":
        return None
    accepted = _content_type(scope) == _MULTIPART
    if _is_from_browser(scope) and _header(scope, b"authorization") is None:
        accepted = False
    return None if accepted else _FORM_CONTENT_TYPE


def _content_type(scope: Scope) -> bytes | None:
    value = _header(scope, b"content-type")
    if value is None or value in _JSON_TYPES:  # as most are
        return value
    return value.partition(b";")[0].strip().lower()


def _is_from_browser(scope: Scope) -> bool:
    return any(
        name in (b"origin", b"referer") or name.startswith(b"sec-fetch-")
        for name, _ in scope["headers"]
    )


def _is_from_foreign_page(scope: Scope) -> bool:
    """Whether a page of another origin may have sent the request without CORS preflight."""
    if not _is_from_browser(scope) or _header(scope, b"authorization") is not None:
        return False
    return _header(scope, b"sec-fetch-site") != b"same-origin"


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            first: bytes = value
            return first
    return None
