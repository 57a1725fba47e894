"""An engine whose exceptions say all that they know, as those of libraries do."""

from openai_frontend.engines.engine import DeltaSink, Engine, ModelFacts, ModelFolder
from openai_frontend.generation import (
    EmbeddingRequest,
    EmbeddingResult,
    GenerationRequest,
    ScoreRequest,
    ScoreResult,
)

CONFIG = (
    'backend: "inprocess"\n'
    f'parameters {{ key: "engine" value: {{ string_value: "{__name__}:TellingEngine" }} }}\n'
)


class TellingEngine(Engine):
    def load(self, model: ModelFolder) -> ModelFacts:
        tokenizer = model.version_folder / "tokenizer"
        return ModelFacts(
            max_model_len=4096,
            tokenizer=str(tokenizer),
            tasks=("generate", "embed", "score"),
            dimensions=4,
        )

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        raise RuntimeError(f"cannot go on after {request.prompt!r}")

    async def embed(self, request: EmbeddingRequest) -> EmbeddingResult:
        raise KeyError(request.prompt)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        raise RuntimeError("no score") from ValueError(list(request.prompt_token_ids))
