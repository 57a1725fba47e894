"""Which models have requests at work: they stay, and come where they are asked for."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from openai_frontend.errors import ModelNotFound
from openai_frontend.serving.admission import Admission
from openai_frontend.serving.kserve.addresses import ModelAddress
from openai_frontend.serving.kserve.core import Core

Use = Callable[[str], AbstractAsyncContextManager[Any]]


class AtWork:
    """`async with at_work.on(model):` around all that is asked of a model for a request."""

    def __init__(self, core: Core, use: Use, admission: Admission) -> None:
        """`use` keeps what it knows of every name, so it is told those of models alone."""
        self._core = core
        self._use = use
        self._admission = admission

    @asynccontextmanager
    async def on(self, model: ModelAddress) -> AsyncGenerator[None, None]:
        """Raises ModelNotFound for what is in no repository, ServerOverloaded where no place is."""
        if not self._core.model_is_ready(model.name) and not self._is_in_a_repository(model.name):
            raise ModelNotFound(f"there is no model '{model.name}'", param="model")
        with self._admission.room(1):
            async with self._use(model.name):
                yield

    def _is_in_a_repository(self, name: str) -> bool:
        return any(line.name == name for line in self._core.model_index())
