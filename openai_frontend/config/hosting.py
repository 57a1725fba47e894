"""Settings in the environment variables of SageMaker and Vertex AI containers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

InferenceType = Literal["infer", "generate", "generate_stream"]
_LONGEST_SESSION_S = 7 * 24 * 3600
_TYPES = ("infer", "generate", "generate_stream")


@dataclass(frozen=True, slots=True)
class Hosting:
    """The variables have Triton's meaning."""

    default_model: str | None = None  # of requests in KServe's format
    inference_type: InferenceType | None = None  # None: by the body
    health_route: str | None = None  # Vertex AI's
    predict_route: str | None = None
    session_lifetime_s: int | None = None  # SageMaker's; None: no sessions

    @classmethod
    def of(cls, environment: Mapping[str, str], default_model: str | None = None) -> "Hosting":
        """`default_model`: the model if no variable names one. Raises ValueError that names the
        variable.
        """
        kind = environment.get("SAGEMAKER_TRITON_INFERENCE_TYPE")
        if kind is not None and kind not in _TYPES:
            raise ValueError(f"SAGEMAKER_TRITON_INFERENCE_TYPE must be one of {', '.join(_TYPES)}")
        routes: list[str | None] = [None, None]
        if environment.get("AIP_MODE") == "PREDICTION":
            routes = [_route(environment, f"AIP_{name}_ROUTE") for name in ("HEALTH", "PREDICT")]
        is_stateful = environment.get("SAGEMAKER_ENABLE_STATEFUL_SESSIONS", "").lower()
        return cls(
            environment.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", default_model),
            cast("InferenceType | None", kind),
            health_route=routes[0],
            predict_route=routes[1],
            session_lifetime_s=_lifetime_s(environment) if is_stateful in ("true", "1") else None,
        )


def _route(environment: Mapping[str, str], name: str) -> str:
    route = environment.get(name, "")
    if not route.startswith("/") or "{" in route:
        raise ValueError(f"{name} must be a path, because AIP_MODE is PREDICTION")
    return route


def _lifetime_s(environment: Mapping[str, str]) -> int:
    name = "SAGEMAKER_SESSIONS_EXPIRATION"
    text = environment.get(name, "1200")
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _LONGEST_SESSION_S):
        raise ValueError(f"{name} must be a number of seconds from 1 to {_LONGEST_SESSION_S}")
    return int(text)
