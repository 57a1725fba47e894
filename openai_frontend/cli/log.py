"""The gateway's log: one line for each record, with the id of the request that it belongs to."""

import logging

from openai_frontend.middleware.request_id import add_request_id

_FORMAT = "%(asctime)s %(levelname)s%(request)s %(name)s: %(message)s"


def log_to_stderr(level: str) -> None:
    """Sets the process's logging up; uvicorn's loggers end here too."""
    handler = logging.StreamHandler()
    handler.addFilter(add_request_id)
    logging.basicConfig(level=level.upper(), format=_FORMAT, handlers=[handler])


def change(level: str, *, access: bool) -> None:
    """Another level at once; a line for each request, or none, on the connections to come."""
    logging.getLogger().setLevel(level.upper())
    logging.getLogger("uvicorn.access").propagate = access
