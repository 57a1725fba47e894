"""Example of an engine: it answers with the prompt, word by word, in capitals."""

import asyncio

from openai_frontend.engines.engine import DeltaSink, Engine, ModelFacts, ModelSpec
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts


class ShoutEngine(Engine):
    """`pause_s` in `model.json` is the pause between two words in seconds."""

    def load(self, model: ModelSpec) -> ModelFacts:
        """Read the settings. A real engine would load its weights here; it may block."""
        self._pause_s = float(model.arguments.get("pause_s", 0.05))
        return ModelFacts(max_model_len=1000, description="says it again, louder")

    async def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Send one delta per word. If the client disconnects, this task is cancelled at the
        next `await`.
        """
        words = (request.prompt or "").split() or [""]
        for number, word in enumerate(words[:-1]):
            sink.send(CompletionDelta(text=word.upper() + " ", token_ids=(number,)))
            await asyncio.sleep(self._pause_s)
        counts = TokenCounts(prompt_tokens=len(words))
        sink.send(CompletionDelta(words[-1].upper(), (len(words),), "stop", counts=counts))
