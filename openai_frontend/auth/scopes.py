"""What keys are for, and which of it each kind of address needs. Never looks at a request."""

from typing import Literal, get_args

# inference: answers of models, and their tokens. models: what there is, and the pages that
# describe it. metrics: what watches the server. admin: what changes it.
KeyScope = Literal["inference", "models", "metrics", "admin"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)

# What an address is about: a scope's matter, or one that may be left open to everybody.
# public: what says nothing but that this server is here, which never needs a key.
RouteScope = Literal["inference", "models", "metrics", "admin", "health", "docs", "public"]

# The scope for an area that is not left open.
REQUIRED_SCOPE: dict[RouteScope, KeyScope] = {
    "inference": "inference",
    "models": "models",
    "metrics": "metrics",
    "admin": "admin",
    "health": "metrics",
    "docs": "models",
}
