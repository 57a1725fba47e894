"""The model repository: its index, and loading and unloading of models."""

import re
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

    async def index(self, body: bytes) -> list[dict[str, Any]]:
        """One entry for each version of every model, or of the ready ones."""
        ready_only = bool(body) and (await self._index.read(body)).ready
        return [_entry(line) for line in self._management.index(ready_only=ready_only)]

    async def load(self, model: ModelAddress, body: bytes) -> None:
        """Loads or reloads a model, optionally with the request's config and files."""
        parameters = ((await self._load.read(body)).parameters if body else None) or {}
        config: str | None = None
        files: dict[str, bytes] = {}
        for name, value in parameters.items():
            if name == "config":
                config = value
            elif name.startswith(_FILE):
                files[_path(name)] = _content(name, value)
            else:
                raise _refusal(name, "must be `config` or `file:<path>`")
        if files and config is None:
            raise _refusal(next(iter(parameters)), "`file:` parameters require a `config`")
        management, model_files = self._management, files or None
        change = await management.load(model.name, config=config, model_files=model_files)
        await change.done()

    async def unload(self, model: ModelAddress, body: bytes) -> None:
        """Unloads a model, and with `unload_dependents` an ensemble's steps too."""
        parameters = (await self._unload.read(body)).parameters if body else None
        parts = parameters is not None and bool(parameters.unload_dependents)
        change = await self._management.unload(model.name, dependents=parts)
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


def _refusal(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"parameter '{name[:128]}': {reason}", param=name[:128])
