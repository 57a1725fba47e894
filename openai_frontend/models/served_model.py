"""One Triton model as the gateway serves it: its contract, tokenizer and templates in one place."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Unpack

from openai_frontend import request_record
from openai_frontend.admission.limits import ANONYMOUS, QueueKey
from openai_frontend.contracts.contract import Contract
from openai_frontend.contracts.embedding import GenericEmbeddingContract
from openai_frontend.contracts.pooling import EmbeddingContract, ScoreContract
from openai_frontend.errors import GatewayError, InvalidRequest, ModelUnavailable
from openai_frontend.generation import (
    Adapter,
    CompletionDelta,
    EmbeddingResult,
    EmbedRequest,
    GenerationRequest,
    SamplingParams,
    ScorePairRequest,
    ScoreResult,
)
from openai_frontend.lora.weights_upload import WeightsUploader
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.metrics.model import GenerationLabels, GenerationMetrics
from openai_frontend.models.triton_model import TritonModel
from openai_frontend.parsing.output_format import PLAIN, OutputFormat
from openai_frontend.prompting.chat_template import TemplateArguments
from openai_frontend.prompting.prompt import Prompt, PromptBuilder, TokenizeKwargs, TokenizeOptions
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.prompting.tokenizer_pool import TokenizerPool
from openai_frontend.triton import ResponseStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What requests can ask of a model."""

    chat: bool = False
    completions: bool = False
    embeddings: bool = False
    rerank: bool = False
    tools: bool = False
    images: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What clients are told of a model."""

    name: str
    created: int  # Unix time at which it became ready
    owned_by: str
    ready: bool
    max_model_len: int | None = None  # prompt and answer together, in tokens
    root: str | None = None  # the model whose weights it has; its own name unless it says
    parent: str | None = None  # the model that an adapter adapts
    alias_of: str | None = None  # the listed model whose alias or version this is
    capabilities: Capabilities = Capabilities()
    description: str | None = None
    error: str | None = None  # why it cannot serve


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(TritonModel):
    """Prompts and generations of one model. Never knows of HTTP or of OpenAI's fields."""

    version_label: str  # in metrics: the version's number, where `version` is the latest too
    created: int  # Unix time at which it became ready
    facts: Mapping[str, Any]  # what its engine, its files and its operator say
    contract: Contract | None  # None where the model's tensors are no text generation
    prompts: PromptBuilder | None  # None where no tokenizer is known
    pool: TokenizerPool
    embedding_contract: EmbeddingContract | GenericEmbeddingContract | None = (
        None  # None where the model makes no vectors
    )
    score_contract: ScoreContract | None = None  # None where it is no cross-encoder
    reading: OutputFormat = PLAIN  # how its answers are read
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    alias_of: str | None = None  # the listed model whose alias or version this is
    max_output_tokens: int | None = None  # of one answer, by its operator's word
    adapter: Adapter | None = None  # that its answers are made with
    weights_uploader: WeightsUploader | None = (
        None  # where the backend is told the adapter's weights
    )

    @property
    def max_model_len(self) -> int | None:
        """The context: prompt and answer together, in tokens. None where the model does not say."""
        return self.facts.get("max_model_len")

    @property
    def vocab_size(self) -> int | None:
        """Token ids are below it. None where the model does not say."""
        return self.facts.get("vocab_size")

    @property
    def tasks(self) -> frozenset[str]:
        """What the model can do: "generate", "embed", "score"."""
        contracts = {
            "generate": self.contract,
            "embed": self.embedding_contract,
            "score": self.score_contract,
        }
        return frozenset(task for task, contract in contracts.items() if contract is not None)

    @property
    def dimensions(self) -> int | None:
        """The length of the model's vectors. None where it makes none, or does not say."""
        return self.facts.get("dimensions")

    @property
    def matryoshka(self) -> bool | None:
        """Whether shorter vectors may be asked for. None where the model does not say."""
        return self.facts.get("matryoshka")

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_special_tokens: bool = False,
        truncation: Truncation | None = None,
        within_context: bool = True,
        **rendering: Unpack[TemplateArguments],
    ) -> Prompt:
        """Messages as the model's template renders them. Raises InvalidRequest where it refuses."""
        reading = TokenizeOptions(
            add_special_tokens=add_special_tokens,
            param="messages",
            truncation=truncation,
            within_context=within_context,
        )
        chat = partial(self._builder().chat, messages, reading, **rendering)
        plain = not (rendering.get("tools") or rendering.get("documents"))
        told = [*messages, rendering.get("template_kwargs") or {}]
        return await self.pool.run(chat, characters=_characters(told) if plain else None)

    async def tokenize(
        self, text: str, *, param: str = "prompt", **how: Unpack[TokenizeKwargs]
    ) -> Prompt:
        """A raw prompt, with the special tokens that the model's tokenizer adds by itself."""
        work = partial(self._builder().completion, text, TokenizeOptions(param=param, **how))
        return await self.pool.run(work, characters=len(text))

    async def tokenize_all(
        self, texts: Sequence[str], *, params: Sequence[str], **how: Unpack[TokenizeKwargs]
    ) -> list[Prompt]:
        """As `tokenize` each of them, but all on one way off the loop; `params` are their names."""
        readings = [TokenizeOptions(param=param, **how) for param in params]
        work = partial(self._builder().completions, texts, readings)
        return await self.pool.run(work, characters=sum(map(len, texts)))

    async def tokenize_pair(
        self, first: str, second: str, *, param: str = "documents"
    ) -> tuple[list[int], list[int]]:
        """Both texts in one sequence, as a cross-encoder reads them: ids, and each one's part."""
        work = partial(self._builder().pair, first, second, param=param)
        return await self.pool.run(work, characters=len(first) + len(second))

    def document_start(self) -> int | None:
        """The token from which the model begins a text of its own; None where it has none."""
        return None if self.prompts is None else self.prompts.document_start

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids, on the loop: no more than a context of them, 0.25 us each."""
        return self._builder().decode(token_ids, skip_special_tokens=skip_special_tokens)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of any number of token ids, special tokens included."""
        work = partial(self._builder().decode, token_ids, skip_special_tokens=False)
        return await self.pool.run(work, characters=len(token_ids))

    async def vocabulary_tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        """The tokens as the vocabulary spells them."""
        work = partial(self._builder().vocabulary_tokens, token_ids)
        return await self.pool.run(work, characters=len(token_ids))

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of one token, which may be a part of a character; None where nobody knows."""
        return None if self.prompts is None else self.prompts.token_bytes(token_id)

    def template_knows(self, name: str) -> bool:
        """Whether the model's chat template takes something of this name."""
        return self.prompts is not None and self.prompts.template_knows(name)

    def template_accepts(self, name: str, value: str) -> bool:
        """Whether the model's chat template renders with this value of a variable."""
        return self.prompts is None or self.prompts.template_accepts(name, value)

    def fill_in_the_middle(self, prefix: str, suffix: str) -> str:
        """The prompt by which the model fills the gap between two texts, if it was made for it."""
        return self._builder().fill_in_the_middle(prefix, suffix)

    def turn(self, priority: int) -> QueueKey:
        """Whose turn a request of this priority waits for: nobody in particular has sent it."""
        return QueueKey(priority=priority) if priority else ANONYMOUS

    def reserve(self, first: GenerationRequest | EmbedRequest | ScorePairRequest) -> None:
        """Called with a request's first work before it waits for a place; nobody is charged."""

    def supports(self, field: str) -> bool:
        """True where the model can honour this field of GenerationRequest or SamplingParams; a
        priority, where Triton's queue in front of it has levels.
        """
        if self.contract is None:
            return False
        return self.contract.supports(field) or (
            field == "priority" and self.triton_queue.levels > 0
        )

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[CompletionDelta], None]:
        """Bursts of deltas, as they come; closing the generator ends the request in Triton."""
        if self.adapter is None:
            return self._generate(request)
        adapted = replace(request, adapter=self.adapter)
        if self.weights_uploader is None:
            return self._generate(adapted)
        return self.weights_uploader.generate(adapted, self._generate)

    async def _generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        contract = self.contract
        if contract is None:
            raise InvalidRequest(f"The model '{self.name}' does not generate text.", param="model")
        decoders = [  # each reads its own sequence of the same responses
            contract.decoder(replace(request, sequence=at) if at else request)
            for at in range(request.sequences)
        ]
        cut = _may_be_cut(request, contract)
        record = request_record.current.get()
        told = None if record is None else record.generation(self.model_name, request)
        async with self.lease:
            stream = self.infer(
                contract.encode(request),
                request.request_id,
                priority=request.priority,
                timeout_us=request.timeout_us,
            )
            _offer(stream, request, contract)
            request.usage.follow(stream, request.stream_interval, streamed=request.stream)
            watched = self._answer_metrics().begin(request.usage)
            try:
                async for responses in stream:
                    deltas = [read(response) for read in decoders for response in responses]
                    watched.add(deltas)
                    yield deltas
                    if cut and any(delta.finish_reason is not None for delta in deltas):
                        break  # whatever the model goes on to say; it is told to stop
            except InvalidRequest as refused:
                watched.failed()
                raise _named(refused, request) from refused
            except GatewayError:
                watched.failed()
                raise
            finally:
                watched.end()
                if told is not None:
                    told.end()
                stream.cancel()

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        """One input's vector; whoever cancels this ends the request in Triton."""
        contract = self.embedding_contract
        if contract is None:
            raise InvalidRequest(f"The model '{self.name}' makes no embeddings.", param="model")
        result = contract.decode(await self.infer_one(contract.encode(request), request.request_id))
        self._count_prompt(result.prompt_tokens)
        return result

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        """One pair's score; whoever cancels this ends the request in Triton."""
        contract = self.score_contract
        if contract is None:
            raise InvalidRequest(f"The model '{self.name}' is no cross-encoder.", param="model")
        result = contract.decode(await self.infer_one(contract.encode(request), request.request_id))
        self._count_prompt(result.prompt_tokens)
        return result

    def _count_prompt(self, prompt_tokens: int) -> None:
        self._answer_metrics().prompt_tokens.observe(prompt_tokens)
        if (record := request_record.current.get()) is not None:
            record.read(self.model_name, prompt_tokens)

    def _answer_metrics(self) -> GenerationMetrics:
        adapter = "" if self.adapter is None else self.adapter.name
        return self.metrics.generations_of(
            GenerationLabels(self.model_name, self.version_label, adapter)
        )

    def card(self) -> ModelCard:
        """The model as it is now: an engine may have died since it was loaded."""
        ready = self.is_ready()
        return ModelCard(
            name=self.name,
            created=self.created,
            owned_by=self.facts.get("owned_by", "triton"),
            ready=ready,
            max_model_len=self.max_model_len,
            root=self.model_name if self.adapter is None else self.adapter.name,
            parent=None if self.adapter is None else self.model_name,
            alias_of=self.alias_of,
            capabilities=self.capabilities(),
            description=self.facts.get("description"),
            error=None if ready else self.failure(),
        )

    def capabilities(self) -> Capabilities:
        """What its tensors, tokenizer and templates allow; none of them takes images yet."""
        generates = "generate" in self.tasks
        chat = generates and self.prompts is not None and self.prompts.can_chat
        return Capabilities(
            chat=chat,
            completions=generates,
            embeddings="embed" in self.tasks,
            rerank=bool(self.tasks & {"embed", "score"}),
            tools=chat and self.reading.tools and self.template_knows("tools"),
        )

    def _builder(self) -> PromptBuilder:
        if self.prompts is None:
            raise ModelUnavailable(f"The model '{self.name}' has no tokenizer in this gateway.")
        return self.prompts


def _characters(told: Sequence[Mapping[str, Any]]) -> int | None:
    """The length of all that a template is told; None where it is more than plain values."""
    values = [value for each in told for value in each.values()]
    if any(isinstance(value, (list, dict)) for value in values):
        return None
    return sum([len(value) for value in values if isinstance(value, str)])


def _may_be_cut(request: GenerationRequest, contract: Contract) -> bool:
    """Whether the answer may end before the model's last response."""
    return bool(request.sampling_params.stop) and "stop" in contract.derives


def _offer(stream: ResponseStream, request: GenerationRequest, contract: Contract) -> None:
    """Let the request's text leave by the short way, where it has one and is text alone."""
    if request.relay is not None and (output := contract.text_output(request)) is not None:
        request.relay.offer(partial(stream.relay, output))


_REFUSABLE = frozenset(each.name for each in fields(SamplingParams)) | {"priority", "cache_salt"}


def _named(refused: InvalidRequest, request: GenerationRequest) -> InvalidRequest:
    """An engine's refusal begins with the field that it dislikes: `structured_outputs: ...`."""
    name, _, reason = refused.message.removeprefix("sampling_parameters: ").partition(": ")
    if refused.param is not None or name not in _REFUSABLE | request.field_names.keys():
        return refused
    param = request.field_names.get(name, name)
    return InvalidRequest(f"Invalid '{param}': {reason}", param=param, code=refused.code)
