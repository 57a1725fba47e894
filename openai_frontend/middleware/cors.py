"""What browsers are told of web pages from elsewhere; Starlette's own middleware does it."""

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

_TOLD_TO_PAGES = [
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "x-adjusted-parameters",
    "x-request-id",
    "x-should-retry",
    *(
        f"x-ratelimit-{word}-{kind}"
        for kind in ("requests", "tokens")
        for word in ("limit", "remaining", "reset")
    ),
]


def cors(origins: Sequence[str]) -> list[Middleware]:
    """To stand before the keys, for a browser asks first and has none then; nothing for no origin.

    Never with cookies: what a page may do, it may do by a key that it knows.
    """
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            allow_credentials=False,
            expose_headers=_TOLD_TO_PAGES,
        )
    ]
