"""The model repository: its index, and loading and unloading of models."""

import re
from collections.abc import Mapping
from typing import Any

import pybase64

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve.models import CoreIndexEntry, ModelAddress
from openai_frontend.models.management import ModelManagement
from openai_frontend.serving.request.request_body import BodyReader
from schemas.kserve import IndexRequest, LoadRequest, UnloadRequest

_FILE = "file:"
# A relative path of plain names inside the model's folder.
_STEP = r"[A-Za-z0-9_][A-Za-z0-9._+@=-]{0,127}"
_PATH = re.compile(rf"(?:{_STEP}/){{0,8}}{_STEP}")


class Repository:
    """Answers requests about the model repository."""

    def __init__(self, management: ModelManagement) -> None:
        self._management = management
        self._index = BodyReader(IndexRequest)
        self._load = BodyReader(LoadRequest)
        self._unload = BodyReader(UnloadRequest)

    async def read_index(self, body: bytes) -> list[dict[str, Any]]:
        """`index`, as the body of an HTTP request asks for it."""
        return await self.index(ready_only=bool(body) and (await self._index.read(body)).ready)

    async def index(self, *, ready_only: bool) -> list[dict[str, Any]]:
        """One entry for each version of every model, or of the ready ones."""
        return [_entry(line) for line in await self._management.index(ready_only=ready_only)]

    async def read_load(self, model: ModelAddress, body: bytes) -> None:
        """`load`, as the body of an HTTP request asks for it."""
        parameters = (await self._load.read(body)).parameters if body else None
        await self.load(model, parameters or {})

    async def load(self, model: ModelAddress, parameters: Mapping[str, str | bytes]) -> None:
        """Loads or reloads a model, optionally with the request's config and files.

        `parameters`: `config`, JSON, and `file:<path>`, as bytes or as text in base64.
        """
        config: str | None = None
        files: dict[str, bytes] = {}
        for name, value in parameters.items():
            if name == "config":
                config = value if isinstance(value, str) else _utf8(name, value)
            elif name.startswith(_FILE):
                files[_path(name)] = value if isinstance(value, bytes) else _content(name, value)
            else:
                raise _refusal(name, "must be `config` or `file:<path>`")
        if files and config is None:
            raise _refusal(next(iter(parameters)), "`file:` parameters require a `config`")
        management, model_files = self._management, files or None
        change = await management.load(model.name, config=config, model_files=model_files)
        await change.done()

    async def read_unload(self, model: ModelAddress, body: bytes) -> None:
        """`unload`, as the body of an HTTP request asks for it."""
        parameters = (await self._unload.read(body)).parameters if body else None
        dependents = parameters is not None and bool(parameters.unload_dependents)
        await self.unload(model, dependents=dependents)

    async def unload(self, model: ModelAddress, *, dependents: bool) -> None:
        """Unloads a model, and with `dependents` an ensemble's steps too."""
        change = await self._management.unload(model.name, dependents=dependents)
        await change.done()


def _entry(line: CoreIndexEntry) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": line.name}
    if line.version is not None:
        return {**entry, "version": str(line.version), "state": line.state, "reason": line.reason}
    return {**entry, "reason": line.reason} if line.reason else entry


def _path(name: str) -> str:
    path = name.removeprefix(_FILE)
    if _PATH.fullmatch(path) is None:
        raise _refusal(name, "must be a relative path of plain names inside the model's folder")
    return path


def _content(name: str, text: str) -> bytes:
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        raise _refusal(name, "its content is not valid base64") from None


def _utf8(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _refusal(name, "must be text in UTF-8") from None


def _refusal(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"parameter '{name[:128]}': {reason}", param=name[:128])
