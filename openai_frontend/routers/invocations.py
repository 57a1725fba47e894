"""POST /invocations of SageMaker and the prediction route of Vertex AI.

Each request is passed to the endpoint for its body: of OpenAI's API, or of KServe's protocol.
"""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from starlette.types import Message

from openai_frontend.errors import InvalidRequest, NotPermitted, NotSupported
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.request import read_body
from openai_frontend.routers.routing import HealthRoute, InferenceRoute
from openai_frontend.routers.stateful_sessions import StatefulSessions
from openai_frontend.serving.request.client_json import client_json
from openai_frontend.serving.request.request_body import BodyReader
from schemas.hosting import InvocationRequest

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

_INFERENCE = "/v2/models/{model}/"
_MOST_INSTANCES = 128

# A member of the body -> the path of its endpoint; the first member that the body has decides
_PATHS: Mapping[str, str] = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/embeddings",
    "inputs": _INFERENCE + "infer",
    "text_input": _INFERENCE + "generate",
}
_BINARY = re.compile(
    r"(application/vnd\.(?:sagemaker|vertex-ai)-triton\.binary\+json;json-header-size=)([0-9]{1,10})"
)
_JSON_LENGTH = "inference-header-content-length"
_REDIRECT = re.compile(
    r"/?v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
    r"/(?P<action>infer|generate|generate_stream)"
)
_SESSION = "x-amzn-sagemaker-session-id"
_NEW_SESSION = "x-amzn-sagemaker-new-session-id"
_CLOSED_SESSION = "x-amzn-sagemaker-closed-session-id"
_ADAPTER = "x-amzn-sagemaker-adapter-identifier"
_TARGET_MODEL = "x-amzn-sagemaker-target-model"
_REDIRECT_HEADER = "x-vertex-ai-triton-redirect"


class Invocations:
    """Finds the endpoint of a body and calls it."""

    def __init__(
        self,
        endpoints: Callable[[str], Endpoint | None],
        default_model: Callable[[], str | None],
        inference_type: str | None = None,
        sessions: StatefulSessions | None = None,
    ) -> None:
        """`endpoints` are those of POST by their paths. `default_model` is the model of requests
        in KServe's format that name none; `inference_type` the endpoint of all of them.
        `sessions` are SageMaker's.
        """
        self._sessions = sessions
        self._endpoints = endpoints
        self._default_model = default_model
        self._inference_type = inference_type
        self._reader = BodyReader(InvocationRequest)

    async def invoke(self, request: Request) -> Response:
        """SageMaker's request."""
        body = await read_body(request.receive)
        fields = await self._read(request, body)
        id = request.headers.get(_SESSION)
        if fields.requestType is None and id is None:
            return await self._answer(request, body, fields)
        if self._sessions is None:
            raise InvalidRequest(
                f"Stateful sessions are off (SAGEMAKER_ENABLE_STATEFUL_SESSIONS): leave out "
                f"{_SESSION} and 'requestType'."
            )
        if fields.requestType is not None:
            return _session_response(self._sessions, fields, id)
        if id is not None:
            self._sessions.require(id, current_request().tenant)
        return await self._answer(request, body, fields)

    async def predict(self, request: Request) -> Response:
        """Vertex AI's request: `instances`, each one a body; or one body."""
        body = await read_body(request.receive)
        if (redirect := request.headers.get(_REDIRECT_HEADER)) is not None:
            return await self._redirected(request, redirect, body)
        fields = await self._read(request, body)
        if fields.instances is None:
            return await self._answer(request, body, fields)
        if len(fields.instances) > _MOST_INSTANCES:
            message = f"'instances' must have at most {_MOST_INSTANCES} members"
            raise InvalidRequest(message, param="instances")
        predictions = [
            await self._prediction(request, {**(fields.parameters or {}), **instance})
            for instance in fields.instances
        ]
        return Response(orjson.dumps({"predictions": predictions}), media_type="application/json")

    async def _prediction(self, request: Request, instance: Mapping[str, Any]) -> Any:
        if instance.get("stream"):
            raise InvalidRequest("'stream' is not possible within instances", param="stream")
        body = {name: value for name, value in instance.items() if name != "@requestFormat"}
        data = client_json(body)
        fields = await self._read(request, data)
        response = await self._answer(_accepting_no_encoding(request), data, fields)
        if response.headers.get("content-type") != "application/json":
            raise InvalidRequest("Binary outputs and streams are not possible within instances.")
        return orjson.loads(response.body)

    async def _answer(self, request: Request, body: bytes, fields: InvocationRequest) -> Response:
        members = fields.model_extra or {}
        path = next((path for name, path in _PATHS.items() if name in members), None)
        if path is None:
            known = ", ".join(_PATHS)
            raise InvalidRequest(f"The body must have one of these members: {known}.")
        if not path.startswith(_INFERENCE):
            if (adapter := request.headers.get(_ADAPTER)) is not None:
                body = client_json({**fields.model_dump(exclude_unset=True), "model": adapter})
            return await self._call(request, path, {}, body)
        if self._inference_type is not None:
            path = _INFERENCE + self._inference_type
        elif path.endswith("generate") and members.get("stream") is True:
            path += "_stream"
        model = request.headers.get(_TARGET_MODEL) or self._default_model()
        if model is None:
            raise InvalidRequest(
                "Several models are loaded: set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME, or the "
                f"header {_TARGET_MODEL}."
            )
        return await self._call(request, path, {"model": model}, body)

    async def _redirected(self, request: Request, redirect: str, body: bytes) -> Response:
        match = _REDIRECT.fullmatch(redirect)
        if match is None:
            raise NotPermitted(
                f"{_REDIRECT_HEADER} must be v2/models/MODEL/infer, generate or generate_stream."
            )
        names = {name: match[name] for name in ("model", "version") if match[name] is not None}
        return await self._call(request, _INFERENCE + match["action"], names, body)

    async def _read(self, request: Request, body: bytes) -> InvocationRequest:
        """The members of the JSON, which tensors may follow."""
        binary = _BINARY.fullmatch(request.headers.get("content-type", ""))
        return await self._reader.read(body if binary is None else body[: int(binary[2])])

    async def _call(
        self, request: Request, path: str, names: Mapping[str, str], body: bytes
    ) -> Response:
        endpoint = self._endpoints(path)
        if endpoint is None:
            raise NotSupported("KServe's protocol is turned off (--enable-kserve).")
        headers: list[tuple[bytes, bytes]] = list(request.scope["headers"])
        binary = _BINARY.fullmatch(request.headers.get("content-type", ""))
        if binary is not None:
            headers.append((_JSON_LENGTH.encode(), binary[2].encode()))
        scope = {**request.scope, "path_params": dict(names), "headers": headers}
        response = await endpoint(Request(scope, _receives(body, request)))
        if binary is not None and (length := response.headers.get(_JSON_LENGTH)) is not None:
            response.headers["content-type"] = binary[1] + length
        return response


def _session_response(
    sessions: StatefulSessions, fields: InvocationRequest, id: str | None
) -> Response:
    """Opens or closes a session."""
    tenant = current_request().tenant
    others = sorted({*fields.model_fields_set, *(fields.model_extra or {})} - {"requestType"})
    if others:
        raise InvalidRequest(f"'requestType' must be the only member, not with '{others[0]}'")
    if fields.requestType == "NEW_SESSION":
        opened = sessions.open(tenant)
        end = datetime.now(UTC) + timedelta(seconds=sessions.lifetime_s)
        headers = {_NEW_SESSION: f"{opened}; Expires={end:%Y-%m-%dT%H:%M:%SZ}"}
        return Response(f"Session {opened} created", headers=headers, media_type="text/plain")
    if not id:
        raise InvalidRequest(f"The header {_SESSION} must name the session to close.")
    sessions.close(id, tenant)
    headers = {_CLOSED_SESSION: id}
    return Response(f"Session {id} closed", headers=headers, media_type="text/plain")


def _accepting_no_encoding(request: Request) -> Request:
    """The endpoint's response is read here: it must not be compressed."""
    headers = [each for each in request.scope["headers"] if each[0] != b"accept-encoding"]
    return Request({**request.scope, "headers": headers}, request.receive)


def _receives(body: bytes, request: Request) -> Callable[[], Coroutine[Any, Any, Message]]:
    """The body again, and then what the client does."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await request.receive()

    return receive


def invocations_router(
    invocations: Invocations,
    ready: Endpoint | None,
    health_route: str | None,
    predict_route: str | None,
) -> APIRouter:
    """`ready` answers at `health_route`. The OpenAPI document omits these routes."""
    router = APIRouter(route_class=InferenceRoute, include_in_schema=False)
    router.add_api_route("/invocations", invocations.invoke, methods=["POST"])
    if predict_route is not None and predict_route not in _paths(router):
        router.add_api_route(predict_route, invocations.predict, methods=["POST"])
    if health_route is not None and ready is not None:
        health = APIRouter(route_class=HealthRoute, include_in_schema=False)
        health.add_api_route(health_route, ready, methods=["GET"])
        router.routes.extend(health.routes)
    return router


def _paths(router: APIRouter) -> Sequence[str]:
    return [getattr(route, "path", "") for route in router.routes]
