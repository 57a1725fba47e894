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
# A path below the model's folder, each step of which is a plain name.
_STEP = r"[A-Za-z0-9_][A-Za-z0-9._+@=-]{0,127}"
_PATH = re.compile(rf"(?:{_STEP}/){{0,8}}{_STEP}")


class Repository:
    """What requests to the repository mean."""

    def __init__(self, management: ModelManagement) -> None:
        self._management = management
        self._index = BodyReader(IndexRequest)
        self._load = BodyReader(LoadRequest)
        self._unload = BodyReader(UnloadRequest)

    def index(self, body: bytes) -> list[dict[str, Any]]:
        """Every model, or those that can serve; one entry for each version."""
        ready_only = bool(body) and self._index.read(body).ready
        return [_entry(line) for line in self._management.index(ready_only=ready_only)]

    async def load(self, model: ModelAddress, body: bytes) -> None:
        """Loads or reloads a model, with the config and the files that the request may bring."""
        parameters = (self._load.read(body).parameters if body else None) or {}
        config: str | None = None
        files: dict[str, bytes] = {}
        for name, value in parameters.items():
            if name == "config":
                config = value
            elif name.startswith(_FILE):
                files[_path(name)] = _content(name, value)
            else:
                raise _refusal(name, "it is neither `config` nor `file:<path>`")
        if files and config is None:
            raise _refusal(next(iter(parameters)), "files want a `config` beside them")
        management, model_files = self._management, files or None
        change = await management.load(model.name, config=config, model_files=model_files)
        await change.done()

    async def unload(self, model: ModelAddress, body: bytes) -> None:
        """Unloads a model; with `unload_dependents` the parts of an ensemble too."""
        parameters = self._unload.read(body).parameters if body else None
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
        raise _refusal(name, "it is no path of plain names within the model's folder")
    return path


def _content(name: str, text: str) -> bytes:
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        raise _refusal(name, "its content is no base64") from None


def _refusal(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"parameter '{name[:128]}': {reason}", param=name[:128])
