"""Bodies of hosting platforms: SageMaker's invocations and Vertex AI's predictions."""

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.sampling import RequestFields


class InvocationRequest(RequestFields):
    """A body of OpenAI's API or KServe's protocol; for Vertex AI also several as instances.

    For SageMaker also the opening or closing of a session.
    """

    requestType: Literal["NEW_SESSION", "CLOSE"] | None = None
    instances: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    parameters: dict[str, Any] | None = None  # of each instance
