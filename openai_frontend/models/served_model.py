"""A model as the gateway serves it: its contracts, tokenizer and templates."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar, Unpack

from openai_frontend.contracts import check_supportable
from openai_frontend.contracts.pooling import weights_of_tokens
from openai_frontend.contracts.select import SelectedContracts
from openai_frontend.errors import GatewayError, InvalidRequest, MalformedOutput
from openai_frontend.generation import Adapter, CompletionDelta, GenerationRequest, KVTransfer
from openai_frontend.media.modalities import SpeechRequest, SpeechSupport
from openai_frontend.metrics.gateway import GatewayMetrics, GenerationLabels, GenerationMetrics
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models import constraint_fallback
from openai_frontend.models.engine_errors import name_input, named
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.moderation import ModerationPolicy
from openai_frontend.models.tasks import capabilities_of, tasks_of
from openai_frontend.models.triton_model import TritonModel
from openai_frontend.parsing.output_format import PLAIN, OutputFormat
from openai_frontend.pooling import (
    TOKEN_TASKS,
    EmbeddingResult,
    EmbedRequest,
    ScorePairRequest,
    ScoreResult,
)
from openai_frontend.prefix_cache.salts import CacheSalts
from openai_frontend.prompting.chat_template import TemplateArguments
from openai_frontend.prompting.media_placeholder import only_question
from openai_frontend.prompting.prompt import Prompt, PromptBuilder, TokenizeKwargs, TokenizeOptions
from openai_frontend.prompting.tokenizer import TokenizerPool, Truncation
from openai_frontend.request_context.context import current_record
from openai_frontend.text_relay import TextRelay
from openai_frontend.triton import ResponseStream

# Tokens that no text has, as vocabularies spell them: they have no weight in a sparse vector
_SPECIAL = frozenset(
    {"<s>", "</s>", "<pad>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"}
)

Salted = TypeVar("Salted", GenerationRequest, EmbedRequest, ScorePairRequest)


class PromptOffload(Protocol):
    """Has prompts computed elsewhere; `models.remote_prefill` implements it."""

    def generate(
        self, model: "ServedModel", request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """Like `ServedModel.generate`; falls back to `generate_here` if it fails."""


class AdapterUpload(Protocol):
    """Sends the weights of an adapter with a request: see `lora.weights_upload`."""

    def generate(
        self,
        request: GenerationRequest,
        generate: Callable[[GenerationRequest], AsyncGenerator[list[CompletionDelta], None]],
    ) -> AsyncGenerator[list[CompletionDelta], None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(TritonModel):
    """Renders prompts and generates with one model. Knows neither HTTP nor OpenAI's fields."""

    version_label: str  # in metrics: the version's number, even if `version` is -1 (latest)
    created: int  # Unix time at which it became ready
    fingerprint: str  # of its config and files: the same on all servers that have them
    facts: ModelFacts  # from its engine, files, tensors, templates and operator
    in_process: bool  # whether its engine runs in this process
    contracts: SelectedContracts
    prompts: PromptBuilder | None  # None without a tokenizer
    pool: TokenizerPool
    output_format: OutputFormat = PLAIN  # the format of its output
    # The operator's values of `reasoning_effort` -> those for the template
    reasoning_effort_map: Mapping[str, str] = field(default_factory=dict)
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    alias_of: str | None = None  # the listed model whose alias or version this is
    max_output_tokens: int | None = None  # the operator's limit for one completion
    adapter: Adapter | None = None  # used for all its generations
    weights_uploader: AdapterUpload | None = None  # if the backend needs the adapter's weights
    remote_prefill: PromptOffload | None = None  # None: it computes its own prompts
    cache_salts: CacheSalts = field(default_factory=CacheSalts)
    moderation: ModerationPolicy | None = None  # None: not for /v1/moderations
    tasks: frozenset[str] = field(init=False)  # names of TASKS

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tasks_of(self.contracts))

    @property
    def speech(self) -> SpeechSupport | None:
        """Inputs besides the text; None if the model is not a text-to-speech model."""
        contract = self.contracts.speech
        return None if contract is None else contract.support

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_special_tokens: bool = False,
        truncation: Truncation | None = None,
        within_context: bool = True,
        extra_characters: int | None = None,
        media: Mapping[str, int] | None = None,
        **rendering: Unpack[TemplateArguments],
    ) -> Prompt:
        """Render messages with the chat template. Raises InvalidRequest if the template rejects
        them, or does not write a placeholder for each item of the media, counted by kind.

        `extra_characters`: length of tools, documents and variables as JSON; None if unknown.
        """
        options = TokenizeOptions(
            add_special_tokens=add_special_tokens,
            param="messages",
            truncation=truncation,
            within_context=within_context,
            media=media,
        )
        if media and self.facts.images is not None and self.facts.images.takes_question:
            return await self.tokenize(only_question(messages), param="messages")
        builder = self._builder()
        chat = partial(builder.chat, messages, options, **rendering)
        characters = None
        if extra_characters is not None and (written := _characters(messages)) is not None:
            characters = written + extra_characters
        return await self.pool.run(chat, characters=characters, inline=builder.inline_characters)

    async def tokenize(
        self, text: str, *, param: str = "prompt", **how: Unpack[TokenizeKwargs]
    ) -> Prompt:
        """Tokenize a raw prompt, with the special tokens that the tokenizer adds by default."""
        builder = self._builder()
        work = partial(builder.completion, text, TokenizeOptions(param=param, **how))
        return await self.pool.run(work, characters=len(text), inline=builder.inline_characters)

    async def tokenize_all(
        self, texts: Sequence[str], *, params: Sequence[str], **how: Unpack[TokenizeKwargs]
    ) -> list[Prompt]:
        """Tokenize several texts in one thread call; `params` name them in errors."""
        readings = [TokenizeOptions(param=param, **how) for param in params]
        builder, characters = self._builder(), sum(map(len, texts))
        work = partial(builder.completions, texts, readings)
        return await self.pool.run(work, characters=characters, inline=builder.inline_characters)

    async def decoder_prompt(self, start: str, previous: str = "") -> Prompt:
        """The prompt of a decoder of audio: the special tokens of `start`, after the end of the
        `previous` text, whose special tokens stay text.
        """
        if self.prompts is None:
            return Prompt(start, [])
        work = partial(self.prompts.decoder_prompt, start, previous)
        return await self.pool.run(work, characters=len(previous))

    async def tokenize_pair(
        self,
        first: str,
        second: str,
        *,
        params: tuple[str, str] = ("query", "documents"),
        truncation: Truncation | None = None,
    ) -> tuple[list[int], list[int]]:
        """Tokenize a pair for a cross-encoder: token ids and token type ids."""
        work = partial(self._builder().pair, first, second, params=params, truncation=truncation)
        return await self.pool.run(work, characters=len(first) + len(second))

    def document_start(self) -> int | None:
        """The token that starts a new document; None if the model has none."""
        return None if self.prompts is None else self.prompts.document_start

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Decode at most a context of token ids on the event loop: 0.25 us each."""
        return self._builder().decode(token_ids, skip_special_tokens=skip_special_tokens)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Decode any number of token ids in a thread, including special tokens."""
        work = partial(self._builder().decode, token_ids, skip_special_tokens=False)
        return await self.pool.run(work, characters=len(token_ids))

    async def vocabulary_tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        """The tokens as in the vocabulary."""
        work = partial(self._builder().vocabulary_tokens, token_ids)
        return await self.pool.run(work, characters=len(token_ids))

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of one token, maybe part of a character; None if unknown."""
        return None if self.prompts is None else self.prompts.token_bytes(token_id)

    def template_knows(self, name: str) -> bool:
        """Whether the chat template uses a variable of this name."""
        return self.prompts is not None and self.prompts.template_knows(name)

    def template_accepts(self, name: str, value: str) -> bool:
        """Whether the chat template renders with this value of a variable."""
        return self.prompts is None or self.prompts.template_accepts(name, value)

    def fill_in_the_middle(self, prefix: str, suffix: str) -> str:
        """The prompt that makes the model fill the gap between two texts, if it supports that."""
        return self._builder().fill_in_the_middle(prefix, suffix)

    def supports(self, field: str) -> bool:
        """Whether the model honours a field of requests, as `Contract.supports`.

        `priority` also works if Triton's own queue before the model has priority levels.
        """
        contract = self.contracts.generation
        if contract is None:
            check_supportable(field)
            return False
        return contract.supports(field) or (field == "priority" and self.triton_queue.levels > 0)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[CompletionDelta], None]:
        """Yield deltas in bursts, as they arrive. Closing the generator cancels the request."""
        return self.generate_salted(self._salted(request))

    def generate_salted(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """`generate` with a cache salt that a gateway has made."""
        if self.adapter is not None:
            request = replace(request, adapter=self.adapter)
            if self.weights_uploader is not None:
                return self.weights_uploader.generate(request, self.generate_here)
        if self.remote_prefill is not None:
            return self.remote_prefill.generate(self, request)
        return self.generate_here(request)

    def generate_here(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """`generate` without a prefill server, and with the adapter that the request has."""
        if request.fallback is None:
            return self._generate(request)
        return constraint_fallback.generate(self._generate, request, request.fallback)

    async def _generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        contract = self.contracts.generation
        if contract is None:
            raise InvalidRequest(f"The model '{self.name}' does not generate text.", param="model")
        decoders = [  # one for each sequence in the same responses
            contract.decoder(replace(request, sequence=at) if at else request)
            for at in range(request.sequences)
        ]
        # A stop string may end the completion before the model does
        cut = bool(request.sampling_params.stop) and "stop" in contract.derives
        record = current_record()
        generation_record = None if record is None else record.generation(self.model_name, request)
        if self.facts.images is not None or self.facts.audio is not None:
            self._check_placeholders(request, "prompt")
        async with self.use:
            stream = self.infer(
                contract.encode(request),
                request.request_id,
                priority=request.priority,
                timeout_us=request.timeout_us,
            )
            if request.relay is not None:
                _offer(request.relay, stream, contract.text_output(request), self.prompts)
            request.usage.follow(stream, request.stream_interval, streamed=request.stream)
            watched = self._answer_metrics().begin(request.usage)
            try:
                async for responses in stream:
                    deltas = [read(response) for read in decoders for response in responses]
                    watched.add(deltas)
                    yield deltas
                    if cut and any(delta.finish_reason is not None for delta in deltas):
                        break  # the model may continue; `finally` cancels the request
            except InvalidRequest as refused:
                watched.failed()
                raise named(refused, request) from refused
            except GatewayError:
                watched.failed()
                raise
            finally:
                watched.end()
                if generation_record is not None:
                    generation_record.end()
                stream.cancel()

    async def reject_transfer(self, transfer: KVTransfer) -> None:
        """Tell the engine that has the KV cache of a prompt that it will not be read."""
        if (contract := self.contracts.generation) is not None:
            request = GenerationRequest(
                request_id="rejected-transfer", prompt_token_ids=[0], kv_transfer=transfer
            )
            await self.infer_one(contract.encode(request), request.request_id)

    def batch_limit(self, task: str, *, tokenized: bool) -> int:
        """How many inputs one request to the model may have for a task of pooling: as token ids if
        they are `tokenized`, else as texts.
        """
        if task in TOKEN_TASKS or task == "sparse_embed":
            return 1  # each has vectors or entries of its own number
        contract = {
            "embed": self.contracts.embedding,
            "classify": self.contracts.classification,
            "score": self.contracts.score,
        }[task]
        return 1 if contract is None else contract.batch_limit(tokenized=tokenized)

    async def embed(self, requests: Sequence[EmbedRequest]) -> list[EmbeddingResult]:
        """Pool inputs for one task with one Triton request, at most `batch_limit`. Cancelling this
        cancels the request in Triton.
        """
        task, contracts = requests[0].task, self.contracts
        contract = {
            "embed": contracts.embedding,
            "classify": contracts.classification,
            "sparse_embed": contracts.sparse,
        }.get(task, contracts.tokens)
        requests = [self._salted(each) for each in requests]
        if contract is None:
            does = {"embed": "support embeddings", "classify": "classify texts"}.get(
                task, f"have the task '{task}'"
            )
            raise InvalidRequest(f"The model '{self.name}' does not {does}.", param="model")
        if self.facts.images is not None or self.facts.audio is not None:
            for each in requests:
                self._check_placeholders(each, "input")
        try:
            outputs = await self.infer_one(contract.encode(requests), requests[0].request_id)
        except InvalidRequest as refused:
            name_input(refused, requests)
            raise
        results = contract.decode(outputs, len(requests))
        if task == "sparse_embed" and results[0].sparse is None:
            self._add_sparse(requests[0], results[0])
        self._count_prompts(requests, results)
        return results

    def _add_sparse(self, request: EmbedRequest, result: EmbeddingResult) -> None:
        """The sparse vector of an engine's weights of tokens."""
        ids = request.prompt_token_ids
        if ids is None or self.prompts is None or result.width != 1:
            raise MalformedOutput("The model returned no weight for each token.")
        names = zip(ids, self.prompts.vocabulary_tokens(ids), strict=True)
        special = {token_id for token_id, name in names if name in _SPECIAL}
        result.sparse = weights_of_tokens(ids, result.embedding, special)

    async def score(self, requests: Sequence[ScorePairRequest]) -> list[ScoreResult]:
        """Score pairs with one Triton request, as `embed`."""
        contract, requests = self.contracts.score, [self._salted(each) for each in requests]
        if contract is None:
            raise InvalidRequest(f"The model '{self.name}' is not a cross-encoder.", param="model")
        try:
            outputs = await self.infer_one(contract.encode(requests), requests[0].request_id)
        except InvalidRequest as refused:
            name_input(refused, requests)
            raise
        results = contract.decode(outputs, len(requests))
        self._count_prompts(requests, results)
        return results

    async def speak(self, request: SpeechRequest) -> AsyncGenerator[memoryview, None]:
        """Yield the waveform's samples, little-endian float32, as they arrive. Closing the
        generator cancels the request.
        """
        contract = self.contracts.speech
        if contract is None:
            raise InvalidRequest(f"The model '{self.name}' does not speak.", param="model")
        async with self.use:
            stream = self.infer(contract.encode(request), request.request_id)
            try:
                async for responses in stream:
                    for each in map(contract.decode, responses):
                        if each:
                            yield each
            finally:
                stream.cancel()

    def _salted(self, request: Salted) -> Salted:
        """With the salt that the engine gets. Models without salts get none for the owner."""
        if request.cache_salt is None and request.cache_owner is None:
            return request
        if isinstance(request, GenerationRequest) and not self.supports("cache_salt"):
            return request
        salt = self.cache_salts.salt(request.cache_salt, request.cache_owner)
        return replace(request, cache_salt=salt)

    def _check_placeholders(self, request: GenerationRequest | EmbedRequest, param: str) -> None:
        """A client's own token ids may contain placeholders, too. Texts are checked when they are
        tokenized.
        """
        if self.prompts is not None and request.prompt is None:
            token_ids, media = request.prompt_token_ids or (), {"image": len(request.images)}
            if isinstance(request, GenerationRequest):
                media["audio"] = len(request.audio_files)
            self.prompts.check_placeholders(token_ids, media, param)

    def _count_prompts(
        self,
        requests: Sequence[EmbedRequest | ScorePairRequest],
        results: Sequence[EmbeddingResult | ScoreResult],
    ) -> None:
        """Record prompt tokens: the model's own count if it reports one, otherwise the tokens
        sent.
        """
        counts = [
            result.prompt_tokens or len(request.prompt_token_ids or ())
            for request, result in zip(requests, results, strict=True)
        ]
        observe = self._answer_metrics().prompt_tokens.observe
        for each in counts:
            observe(each)
        if (record := current_record()) is not None:
            record.read(self.model_name, sum(counts))

    def _answer_metrics(self) -> GenerationMetrics:
        adapter = "" if self.adapter is None else self.adapter.name
        return self.metrics.generations_of(
            GenerationLabels(self.model_name, self.version_label, adapter)
        )

    def card(self) -> ModelCard:
        """The current card: the engine may have died since it was loaded."""
        ready = self.is_ready()
        return ModelCard(
            name=self.name,
            created=self.created,
            ready=ready,
            facts=self.facts,
            root=self.model_name if self.adapter is None else self.adapter.name,
            parent=None if self.adapter is None else self.model_name,
            alias_of=self.alias_of,
            capabilities=self.capabilities(),
            error=None if ready else self.failure(),
            max_output_tokens=self.max_output_tokens,
        )

    def capabilities(self) -> frozenset[str]:
        """Capabilities by the model's tensors, tokenizer and templates."""
        able = set(capabilities_of(self.tasks))
        if "generate" in self.tasks and self.prompts is not None and self.prompts.can_chat:
            able.add("chat")
            if self.output_format.tools and self.template_knows("tools"):
                able.add("tools")
            if self.output_format.reasoning:
                able.add("reasoning")
        if "classify" in self.tasks and self.moderation is not None:
            able.add("moderation")
        if self.facts.images is not None:
            able.add("images")
        if self.facts.audio is not None:
            able.add("audio")
        return frozenset(able)

    def _builder(self) -> PromptBuilder:
        if self.prompts is None:
            message = f"The model '{self.name}' has no tokenizer in this gateway."
            raise InvalidRequest(message, param="model", code="unsupported_model")
        return self.prompts


def _characters(messages: Sequence[Mapping[str, Any]]) -> int | None:
    """The total length of the messages' texts; None if some have lists or mappings."""
    characters = 0
    for each in messages:
        for key in each:
            value = each[key]
            kind = type(value)  # of parsed JSON
            if kind is str:
                characters += len(value)
            elif kind is list or kind is dict:
                return None
    return characters


def _offer(
    relay: TextRelay, stream: ResponseStream, output: str | None, prompts: PromptBuilder | None
) -> None:
    """Let native code relay the text if the output is only text, maybe with log probabilities."""
    if output is None:
        return
    logprobs = (
        None if prompts is None else partial(stream.relay_logprobs, output, prompts.vocabulary)
    )
    relay.offer(partial(stream.relay, output), partial(stream.relay_segments, output), logprobs)
