"""Settings in the environment variables of SageMaker and Vertex AI containers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

InferenceType = Literal["infer", "generate", "generate_stream"]
_TYPES = ("infer", "generate", "generate_stream")


@dataclass(frozen=True, slots=True)
class Hosting:
    """The variables have Triton's meaning."""

    default_model: str | None = None  # of requests in KServe's format
    inference_type: InferenceType | None = None  # None: by the body
    health_route: str | None = None  # Vertex AI's
    predict_route: str | None = None

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
        return cls(
            environment.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", default_model),
            cast("InferenceType | None", kind),
            *routes,
        )


def _route(environment: Mapping[str, str], name: str) -> str:
    route = environment.get(name, "")
    if not route.startswith("/") or "{" in route:
        raise ValueError(f"{name} must be a path, because AIP_MODE is PREDICTION")
    return route
