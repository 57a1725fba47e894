"""A request's raw bytes, read once into its schema. Never sees HTTP."""

from typing import Generic, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.json_size import check_json_size
from openai_frontend.serving.validation_error import invalid_request
from schemas.sampling import RequestFields

Fields = TypeVar("Fields", bound=RequestFields)


class BodyReader(Generic[Fields]):
    """Reads the bodies of one kind of request."""

    def __init__(self, schema: type[Fields]) -> None:
        self._adapter = TypeAdapter(schema)

    def read(self, body: bytes) -> Fields:
        """The request, or InvalidRequest in OpenAI's words for the first thing that is wrong."""
        check_json_size(body)
        _check_is_json(body)
        try:
            return self._adapter.validate_json(body)
        except ValidationError as error:
            problems = error.errors(include_url=False)
        raise invalid_request(problems)


def _check_is_json(body: bytes) -> None:
    """pydantic's parser takes NaN and Infinity, which JSON does not have; they may also be text."""
    if b"NaN" not in body and b"Infinity" not in body:
        return
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"We could not parse the JSON body of your request: {error}."
        raise InvalidRequest(message, code="json_invalid") from None
