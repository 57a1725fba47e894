"""An engine whose exceptions say all that they know, as those of libraries do."""

from tokenizers import Tokenizer

from openai_frontend.engines.engine import DeltaSink, Engine, ModelFacts, ModelSpec
from openai_frontend.generation import GenerationRequest
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest, ScoreResult

CONFIG = (
    'backend: "inprocess"\n'
    f'parameters {{ key: "engine" value: {{ string_value: "{__name__}:TellingEngine" }} }}\n'
)


class TellingEngine(Engine):
    def load(self, model: ModelSpec) -> ModelFacts:
        tokenizer = model.version_folder / "tokenizer"
        self._tokenizer = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        return ModelFacts(
            max_model_len=4096,
            tokenizer=str(tokenizer),
            tasks=("generate", "embed", "score"),
            dimensions=4,
        )

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        prompt = self._tokenizer.decode(request.prompt_token_ids or [])
        raise RuntimeError(f"cannot go on after {prompt!r}")

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        raise KeyError(self._tokenizer.decode(request.prompt_token_ids or []))

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        cause = LookupError(self._tokenizer.decode(request.prompt_token_ids))
        raise RuntimeError("no score") from cause
