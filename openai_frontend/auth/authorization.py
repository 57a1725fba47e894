"""Authorizes a request of any protocol by its headers and the scope of what it asks for."""

import contextlib
from collections.abc import Collection
from typing import Literal

from openai_frontend.auth.api_keys import ApiKeys, Principal, RouteScope
from openai_frontend.errors import NotAuthenticated, NotPermitted

# Headers for keys in other APIs; read only if there is no Authorization header.
_OTHER_HEADERS = (b"x-api-key", b"api-key")
KEY_HEADERS = frozenset({b"authorization", *_OTHER_HEADERS})  # that may have a key

_NO_KEY = (
    "You did not provide an API key. Send it in the header Authorization, as 'Bearer' and the key."
)


class Authorizer:
    """The keys in force, and the scopes that need none."""

    def __init__(self, keys: ApiKeys, public_scopes: Collection[RouteScope]) -> None:
        self._keys = keys
        self._public_scopes = public_scopes

    def authorize(
        self,
        headers: Collection[tuple[bytes, bytes]],
        scope: RouteScope | Literal["nowhere"] | None,
    ) -> Principal | None:
        """The caller; None without a key, for a public scope.

        `headers` have lower-case names. `scope` is None for what no key may use, "nowhere" for what
        does not exist. Raises NotAuthenticated or NotPermitted.
        """
        if scope in self._public_scopes:
            with contextlib.suppress(NotAuthenticated):
                return self._keys.authenticate(_secret(headers))
            return None
        principal = self._keys.authenticate(_secret(headers))
        if scope is None:
            raise NotPermitted("No API key grants access to this path.")
        if scope != "nowhere":
            principal.require(scope)
        return principal


def _secret(headers: Collection[tuple[bytes, bytes]]) -> bytes:
    """The request's API key; `Authorization` takes precedence. Rejects two different ones in
    headers of the same kind: a proxy may have checked the other one.
    """
    authorization = [value for name, value in headers if name == b"authorization"]
    values = authorization or [value for name, value in headers if name in _OTHER_HEADERS]
    if not values:
        raise NotAuthenticated(_NO_KEY)
    if len(values) > 1 and len(set(values)) > 1:
        raise NotAuthenticated("The request has more than one API key. Send one.")
    if not authorization:
        return values[0]
    scheme, _, secret = values[0].partition(b" ")
    if scheme.lower() != b"bearer":
        raise NotAuthenticated(_NO_KEY)
    return secret.strip(b" ")
