"""One line of the log for each request. No path and no header as the client wrote them."""

import logging

from openai_frontend.request_record import RequestRecord

logger = logging.getLogger("openai_frontend.access_log")


def write(record: RequestRecord) -> None:
    """What JSON has as members stands in the message too, where it is known."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields = {
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "duration_ms": round((record.end_ns - record.begun_ns) / 1e6, 3),
        "bytes": record.body_bytes,
        "model": record.model or None,
        "prompt_tokens": record.prompt_tokens or None,
        "completion_tokens": record.completion_tokens or None,
        "key": record.key,
        "client": record.client,
        "error": record.error,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    head = [str(known.pop(name)) for name in ("method", "route", "status")]
    told = [f"{name}={value}" for name, value in known.items()]
    logger.info("%s", " ".join(head + told), extra={"fields": fields})
