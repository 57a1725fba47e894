"""The mock engine with a deliberate leak: each request leaves bytes behind that nobody frees.

It proves that a soak can fail; nothing but a soak's own model names it.
"""

from dataclasses import replace
from typing import ClassVar

from openai_frontend.engines.engine import DeltaSink, ModelFacts, ModelSpec
from openai_frontend.engines.mock import MockEngine
from openai_frontend.generation import GenerationRequest


class LeakingEngine(MockEngine):
    """`model.json` has `leak_bytes` beside the mock's own settings."""

    left: ClassVar[list[bytes]] = []

    def load(self, model: ModelSpec) -> ModelFacts:
        """The mock's, once its arguments are the mock's alone."""
        arguments = dict(model.arguments)
        self._leak_bytes = int(arguments.pop("leak_bytes"))
        return super().load(replace(model, arguments=arguments))

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """The mock's, and the leak."""
        self.left.append(b"x" * self._leak_bytes)
        super().generate(request, sink)
