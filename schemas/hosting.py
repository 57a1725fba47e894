"""Bodies of hosting platforms: SageMaker's invocations and Vertex AI's predictions."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.json_value import JSONObject
from schemas.sampling import RequestFields


class InvocationRequest(RequestFields):
    """A body of OpenAI's API or KServe's protocol; for Vertex AI also several as instances.

    For SageMaker also the opening or closing of a session.
    """

    requestType: Literal["NEW_SESSION", "CLOSE"] | None = None
    instances: Annotated[list[JSONObject], Field(min_length=1)] | None = None
    parameters: JSONObject | None = None  # of each instance
