"""How TensorRT-LLM's engines are told to sample, by whichever of its models they are asked."""

from openai_frontend.contracts.contract import DeclaredInputs
from openai_frontend.contracts.layout import Values
from openai_frontend.generation import SamplingParams


def tell_sampling(
    params: SamplingParams, values: Values, declared: DeclaredInputs, *, prefix: str = ""
) -> None:
    """The engine is greedy unless top_k or top_p says more, whatever the temperature."""
    temperature, top_k, top_p = (f"{prefix}{name}" for name in ("temperature", "top_k", "top_p"))
    if params.seed is not None:
        values[f"{prefix}seed"] = [params.seed % 2**64]
    if params.top_k is not None:
        values[top_k] = [max(params.top_k, 0)]  # all tokens
    if params.temperature == 0 and top_k in declared:
        del values[temperature]
        values[top_k] = [1]
    elif params.temperature and params.top_p is None and not values.get(top_k, [0])[0]:
        values[top_p] = [1.0]
