"""What operators ask: is it up, is it ready, which version is it."""

from typing import Literal

from pydantic import BaseModel


class Health(BaseModel):
    """`models` says why, for each model that cannot serve; it is absent unless some cannot."""

    status: Literal["live", "ready", "not ready", "stopping"]
    models: dict[str, str] | None = None


class Version(BaseModel):
    """The version of this server."""

    version: str
