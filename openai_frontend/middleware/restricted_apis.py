"""Refuses requests of restricted groups without the group's header and value, before their key is
checked.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.auth.restrictions import Restriction
from openai_frontend.errors import ApiRestricted, OpenAIApiRestricted
from openai_frontend.middleware.error_responses import error_form, send_error
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.error_reply import reply_for

logger = logging.getLogger(__name__)

Required = tuple[Restriction, type[ApiRestricted]]

_LISTS_MODELS = "model-repository"


class RestrictedApis:
    """`http` restricts every route of a group, `openai` those outside KServe's protocol too."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        route_of: Callable[[Scope], BaseRoute | None],
        group_of: Callable[[BaseRoute], str | None],
        http: Mapping[str, Restriction],
        openai: Mapping[str, Restriction],
    ) -> None:
        self._app = app
        self._route_of = route_of
        self._group_of = group_of
        self._http = http
        self._openai = openai
        self._of_lists = [each[_LISTS_MODELS] for each in (http, openai) if _LISTS_MODELS in each]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (route := self._route_of(scope)) is not None:
            for restriction, error in self._required(route, scope):
                if not restriction.allows(scope["headers"]):
                    await _refuse(error(restriction.header), scope, send)
                    return
            allowed = (each.allows(scope["headers"]) for each in self._of_lists)
            current_request().may_list_models = all(allowed)
        await self._app(scope, receive, send)

    def _required(self, route: BaseRoute, scope: Scope) -> Sequence[Required]:
        group = self._group_of(route)
        if group is None:
            return ()
        required: list[Required] = []
        if group in self._http:
            required.append((self._http[group], ApiRestricted))
        if group in self._openai and error_form(scope) != "kserve":
            required.append((self._openai[group], OpenAIApiRestricted))
        return required


async def _refuse(error: ApiRestricted, scope: Scope, send: Send) -> None:
    """Logged at DEBUG, so that such requests cannot fill the log."""
    logger.debug("request %s rejected: %s", current_request().request_id, error.message)
    await send_error(scope, send, reply_for(error))
