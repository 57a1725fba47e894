"""Models and versions as the addresses of KServe's protocol name them: Triton's own names."""

import re
from dataclasses import dataclass

from openai_frontend.errors import InvalidRequest, ModelNotFound

# Triton's names are those of folders. What cannot be one is no model's, and is never looked for.
_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]{1,255}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
LATEST = -1


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """A model, and a version of it or the latest."""

    name: str
    version: int = LATEST


def model_address(name: str, version: str | None = None) -> ModelAddress:
    """Raises ModelNotFound and InvalidRequest for what names none."""
    if _NAME.fullmatch(name) is None:
        raise ModelNotFound(f"no model has the name {name[:64]!r}", param="model")
    if version is None:
        return ModelAddress(name)
    if _VERSION.fullmatch(version) is None:
        message = f"invalid model version {version[:64]!r}: it is an integer above 0"
        raise InvalidRequest(message, param="version")
    return ModelAddress(name, int(version))
