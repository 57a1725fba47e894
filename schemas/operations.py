"""Health and version of the server."""

from typing import Literal

from pydantic import BaseModel


class Health(BaseModel):
    """`models` has the reason for each model that cannot serve; absent if all can."""

    status: Literal["live", "ready", "not ready", "stopping"]
    models: dict[str, str] | None = None


class Version(BaseModel):
    """The version of this server."""

    version: str
