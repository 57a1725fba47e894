"""Refuses bodies that are no JSON by their own word: no endpoint of OpenAI's reads another type.

A web page may send forms and plain text to any address without asking it first, JSON it may not: so
a page that a user visits cannot use a gateway that only this user can reach.

KServe's protocol has binary bodies too, which pages may not send either. And `curl -d`, as Triton's
documentation writes it, calls its JSON a form: under KServe's addresses that passes where no
browser has sent it, for a browser says where a form is from.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.authentication import RouteScopeOf
from openai_frontend.middleware.dialect import is_kserve
from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.error_reply import ErrorReply, http_error

READ_TYPES = frozenset({b"application/json"})
READ_BY_KSERVE = READ_TYPES | {b"application/octet-stream"}
FORM = b"application/x-www-form-urlencoded"

_REFUSED = http_error(
    415,
    "Unsupported Content-Type: send the request body as JSON "
    "(with curl: -H 'Content-Type: application/json').",
    "unsupported_content_type",
)
_REFUSED_BY_KSERVE = http_error(
    415,
    "Unsupported Content-Type: send the request body as JSON "
    "(with curl: -H 'Content-Type: application/json'), or as 'application/octet-stream' if "
    "tensors follow the JSON.",
    "unsupported_content_type",
)


class ContentType:
    """Lets JSON pass, and bodies that say nothing of their type."""

    def __init__(self, app: ASGIApp, *, route_scope_of: RouteScopeOf) -> None:
        self._app = app
        self._area_of = route_scope_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _refusal(scope)
        if refusal is None or self._area_of(scope) == "nowhere":  # the router's to refuse
            await self._app(scope, receive, send)
        else:
            await send_failure(scope, send, refusal)


def _refusal(scope: Scope) -> ErrorReply | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    given = _type(scope)
    if given is None or given in READ_TYPES:
        return None
    if not is_kserve(scope):
        return _REFUSED
    read = given in READ_BY_KSERVE or (given == FORM and not _is_from_a_page(scope))
    return None if read else _REFUSED_BY_KSERVE


def _type(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"content-type":
            given: bytes = value.partition(b";")[0].strip().lower()
            return given
    return None


def _is_from_a_page(scope: Scope) -> bool:
    return any(
        name in (b"origin", b"referer") or name.startswith(b"sec-fetch-")
        for name, _ in scope["headers"]
    )
