"""Whose words an address speaks: OpenAI's, or those of KServe's protocol. Knows paths alone."""

from starlette.types import Scope

# Below KServe's prefix, but Cohere's.
_NOT_KSERVE = frozenset({"/v2/rerank"})


def is_kserve(scope: Scope) -> bool:
    """Whether clients of KServe's protocol ask there."""
    path: str = scope["path"]
    return (path.startswith("/v2/") and path not in _NOT_KSERVE) or path == "/v2"
