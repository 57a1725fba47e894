"""Loads and unloads adapters at a client's request, if the operator allows it. No HTTP.

Clients name an adapter; only the operator decides where its files are.
"""

from collections.abc import Callable
from contextlib import aclosing

from openai_frontend.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    ModelHidden,
    ModelNotFound,
    ModelUnavailable,
    NotPermitted,
    ServerOverloaded,
)
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.models.lora.files import NAME
from openai_frontend.models.lora.models import SEPARATOR
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.served_model import ServedModel

MayName = Callable[[str], bool]  # whether the caller's key allows the model


class LoRAManagement:
    """vLLM's load_lora_adapter and unload_lora_adapter."""

    def __init__(self, registry: ModelRegistry, *, enabled: bool) -> None:
        self._registry = registry
        self._enabled = enabled

    async def load(
        self, name: str, base: str | None, path: str | None, *, may_name: MayName
    ) -> ModelCard:
        """Scan the folders and try the adapter by generating one token, even if it is loaded. It
        is unloaded if that fails, unless it was loaded and its base model has failed.

        Errors reveal nothing about models that the caller may not name. Raises NotPermitted,
        InvalidRequest, ModelNotFound, Conflict (two adapters with the same name) and
        ModelUnavailable with the reason.
        """
        base, name = self._checked(name, base)
        if path not in (None, name):
            raise InvalidRequest(
                "Invalid 'lora_path': adapters are loaded by name from the folders that the "
                "operator configured. Leave it out, or repeat the name.",
                param="lora_path",
            )
        base = await self._base(name, base, may_name)
        was_loaded = name in self._registry.adapters(base).adapters
        await self._registry.load_adapter(base, name)
        self._check_found(base, name)
        model = self._registry.get(_full(base, name))
        try:
            await _try(model)
        except GatewayError as error:
            of_base = isinstance(error, ServerOverloaded) or not model.is_ready()
            if not (was_loaded and of_base):
                await self._registry.unload_adapter(base, name)
            message = f"The model '{model.name}' could not be loaded: {error.message}"
            raise ModelUnavailable(message) from error
        return model.card()

    async def unload(self, name: str, base: str | None, *, may_name: MayName) -> str:
        """Unload the adapter; running requests keep it. Returns the name of its model.

        Raises as `load`.
        """
        base, name = self._checked(name, base)
        base = await self._base(name, base, may_name)
        if name not in self._registry.adapters(base).adapters:
            raise _missing(base, name)
        await self._registry.unload_adapter(base, name)
        return _full(base, name)

    def _checked(self, name: str, base: str | None) -> tuple[str | None, str]:
        """Return the base model, if the request names one, and the adapter."""
        if not self._enabled:
            raise NotPermitted(
                "Clients may not load or unload adapters of this server: the setting "
                "'enable_model_management' is off.",
                code="model_management_off",
            )
        if base is None and SEPARATOR in name:
            base, _, name = name.rpartition(SEPARATOR)
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                "Invalid 'lora_name': not a valid adapter name.", param="lora_name"
            )
        return base, name

    async def _base(self, name: str, base: str | None, may_name: MayName) -> str:
        """The name of the base model, not an alias of it."""
        if base is not None:
            if not may_name(_full(base, name)):
                raise ModelHidden(_full(base, name), param="lora_name")
            model = self._registry.get(base)
            if model.adapter is not None or model.model_name not in self._registry.adapter_bases():
                message = f"The model '{model.name}' does not support LoRA adapters."
                raise InvalidRequest(message, param="model")
            return model.model_name
        bases = [each for each in self._registry.adapter_bases() if may_name(_full(each, name))]
        if len(bases) > 1:
            await self._registry.refresh_adapters()
            bases = [each for each in bases if self._registry.adapters(each).names(name)]
        if not bases:
            raise ModelNotFound(f"The adapter '{name}' does not exist.", param="lora_name")
        if len(bases) > 1:
            message = f"Missing required parameter: 'model'. Use one of {', '.join(bases)}."
            raise InvalidRequest(message, param="model", code="missing_required_parameter")
        return bases[0]

    def _check_found(self, base: str, name: str) -> None:
        found = self._registry.adapters(base)
        full = _full(base, name)
        if name in found.clashes:
            message = f"The model '{full}' cannot serve: {found.problems[name]}"
            raise Conflict(message, param="lora_name", code="two_adapters")
        if name in found.problems:
            raise ModelUnavailable(f"The model '{full}' cannot serve: {found.problems[name]}")
        if name not in found.adapters:
            raise _missing(base, name)


def _full(base: str, name: str) -> str:
    return f"{base}{SEPARATOR}{name}"


def _missing(base: str, name: str) -> ModelNotFound:
    return ModelNotFound(f"The model '{base}' has no adapter '{name}'.", param="lora_name")


async def _try(model: ServedModel) -> None:
    """Generate one token: the backend may reject what the files do not show."""
    request = GenerationRequest(
        request_id="adapter-load",
        prompt="a",
        sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
    )
    async with aclosing(model.generate(request)) as bursts:
        async for _ in bursts:
            pass
