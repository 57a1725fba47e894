"""The mock engine with gates."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from openai_frontend.engines.engine import ModelFacts, ModelSpec
from openai_frontend.engines.mock import MockEngine
from tests import mock_models
from tests.resilience.faults.gate import Gate

_AGAIN_S = 0.01
_CONFIG = mock_models.CONFIG.replace('"mock"', f'"{__name__}:GatedEngine"')


def write(repository: Path, name: str, gates: Mapping[str, Gate], **arguments: Any) -> Path:
    """A model folder with a tokenizer. While the gate `load` is closed, no load ends; `answer`:
    requests get no first token; `wake`: an engine that hangs goes on to do so.
    """
    paths = {name: str(gate.path) for name, gate in gates.items()}
    return mock_models.write_with_tokenizer(
        repository, name, config=_CONFIG, gates=paths, **arguments
    )


class GatedEngine(MockEngine):
    """`model.json` has `gates` in addition to the mock's own settings."""

    def load(self, model: ModelSpec) -> ModelFacts:
        """Remove `gates` from the arguments, wait for that of loads, and load the mock."""
        arguments = dict(model.arguments)
        self._gates = {gate: Path(path) for gate, path in arguments.pop("gates").items()}
        while self._is_closed("load"):
            time.sleep(_AGAIN_S)
        return super().load(replace(model, arguments=arguments))

    def _is_closed(self, gate: str) -> bool:
        return gate in self._gates and self._gates[gate].exists()

    def _once_open(
        self, gate: str, loop: asyncio.AbstractEventLoop, call: Callable[[], None]
    ) -> None:
        if self._is_closed(gate):
            loop.call_later(_AGAIN_S, self._once_open, gate, loop, call)
        else:
            call()

    def _admit(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        admit = super()._admit
        self._once_open("answer", loop, lambda: admit(request_id, loop))

    def _wake(self, loop: asyncio.AbstractEventLoop, awake: asyncio.Event) -> None:
        wake = super()._wake
        self._once_open("wake", loop, lambda: wake(loop, awake))
