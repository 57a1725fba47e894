"""The mock engine with a deliberate leak: each request leaves bytes that are never freed.

It proves that a soak can fail; only a soak's own model uses it.
"""

from dataclasses import replace
from typing import ClassVar

from openai_frontend.engines.engine import DeltaSink, ModelFacts, ModelSpec
from openai_frontend.engines.mock import MockEngine
from openai_frontend.generation import GenerationRequest


class LeakingEngine(MockEngine):
    """`model.json` has `leak_bytes` in addition to the mock's own settings."""

    left: ClassVar[list[bytes]] = []

    def load(self, model: ModelSpec) -> ModelFacts:
        """Remove `leak_bytes` from the arguments and load the mock."""
        arguments = dict(model.arguments)
        self._leak_bytes = int(arguments.pop("leak_bytes"))
        return super().load(replace(model, arguments=arguments))

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Leak, then generate as the mock does."""
        self.left.append(b"x" * self._leak_bytes)
        super().generate(request, sink)
