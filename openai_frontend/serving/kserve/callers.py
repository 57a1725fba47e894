"""Which models a caller may ask by KServe's protocol."""

from openai_frontend.access.caller import Caller
from openai_frontend.errors import ModelNotFound, NotPermitted
from openai_frontend.serving.kserve.addresses import ModelAddress

_LONGEST_NAME_IN_MESSAGES = 128


def allows(caller: Caller | None, name: str) -> bool:
    """`caller`: None where the server has no keys, or the address is open to everybody."""
    return caller is None or caller.key.allows(name)


def check_known(caller: Caller | None, model: ModelAddress) -> ModelAddress:
    """A model that the key does not allow is one that does not exist: nobody learns its name."""
    if not allows(caller, model.name):
        shown = model.name[:_LONGEST_NAME_IN_MESSAGES]
        message = f"The model '{shown}' does not exist, or the key may not use it."
        raise ModelNotFound(message, param="model")
    return model


def check_inference(caller: Caller | None, model: ModelAddress) -> ModelAddress:
    """Tensors tell nothing of tokens, so a key that is held to them works on /v1 alone."""
    if caller is not None and (
        caller.quota.counts_tokens or caller.key.own_cache or caller.key.priority
    ):
        message = (
            f"The key '{caller.key.name}' has a limit on tokens, a priority or a cache of its "
            "own, which hold on /v1 alone: it cannot send tensors."
        )
        raise NotPermitted(message)
    return check_known(caller, model)
