"""Which models a caller may ask by KServe's protocol."""

from openai_frontend.auth.principal import Principal
from openai_frontend.errors import NotPermitted
from openai_frontend.serving.admission.authorized_models import check_allowed
from openai_frontend.serving.kserve.addresses import ModelAddress


def check_known(caller: Principal | None, model: ModelAddress) -> ModelAddress:
    """Raises ModelHidden where the key does not allow the model."""
    check_allowed(caller, model.name)
    return model


def check_inference(caller: Principal | None, model: ModelAddress) -> ModelAddress:
    """Tensors tell nothing of tokens, so a key that is held to them works on /v1 alone."""
    if caller is not None and (
        caller.quota.counts_tokens or caller.key.isolate_prefix_cache or caller.key.priority
    ):
        message = (
            f"The key '{caller.key.name}' has a limit on tokens, a priority or a cache of its "
            "own, which hold on /v1 alone: it cannot send tensors."
        )
        raise NotPermitted(message)
    return check_known(caller, model)
