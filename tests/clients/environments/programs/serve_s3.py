"""Serves S3's API with moto: PORT KIND. With the kind `gs`, it is Google's XML API.

That is S3's, but clients encode the slashes in names of objects, and sign nothing in a test. With
`many`, the bucket of that name has 10,000 objects.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Quiet(WSGIRequestHandler):  # type: ignore[misc]  # in another environment
    protocol_version = "HTTP/1.1"  # connections stay open

    def log_request(self, *_: object) -> None:
        pass


SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"


def as_google(app: Wsgi) -> Wsgi:
    def translated(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        for name in ("RAW_URI", "REQUEST_URI"):
            path, mark, query = environ[name].partition("?")
            environ[name] = f"{path.replace('%2F', '/')}{mark}{query}"
        environ.setdefault("HTTP_AUTHORIZATION", SIGNED)
        return app(environ, start_response)

    return translated


def fill(count: int) -> None:
    """Requests would take 20 s."""
    backend = s3_backends["123456789012"]["aws"]
    backend.create_bucket("many", "us-east-1")
    for number in range(count):
        backend.put_object("many", f"m/{number % 3 + 1}/{number}", str(number).encode())


port, kind = int(sys.argv[1]), sys.argv[2]
if kind == "many":
    fill(10_000)
application = DomainDispatcherApplication(create_backend_app)
served = as_google(application) if kind == "gs" else application
run_simple("127.0.0.1", port, served, threaded=True, request_handler=Quiet)
