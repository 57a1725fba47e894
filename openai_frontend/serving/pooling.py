"""The common part of embeddings and scores: inputs as prompts, event loop time, and the vectors."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Literal, TypeVar

import numpy
import orjson
import pybase64

from openai_frontend.errors import (
    ContextLengthExceeded,
    InferenceFailed,
    InvalidRequest,
    MalformedOutput,
)
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, PoolingTask
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.concurrency_limit import gather_bounded
from openai_frontend.serving.admission.model import Describes, Generates, Renders
from openai_frontend.serving.admission.permit import Admission, Permit
from openai_frontend.serving.request.sampling import check_in_vocabulary, unsupported

# For authors of clients that send ids of another tokenizer.
FLOAT_BYTES = 4  # of each number of a vector
VOCABULARY_HINT = (
    "Token ids must come from the model's own tokenizer. langchain-openai sends ids of "
    "OpenAI's; with check_embedding_ctx_length=False it sends text."
)


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its request field."""

    text: str
    param: str  # such as `input[3]`


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids and their request field."""

    token_ids: list[int]
    param: str


async def tokenize_inputs(
    inputs: Sequence[Text | TokenIds],  # only texts, or only token ids
    model: Renders,
    *,
    add_special_tokens: bool = True,
    truncation: Truncation | None = None,
) -> list[Prompt]:
    """A prompt for each input. Raises InvalidRequest for one that the model cannot read."""
    texts = [each for each in inputs if isinstance(each, Text)]
    if not texts:
        return [_checked(each, model, truncation) for each in inputs if isinstance(each, TokenIds)]
    if model.prompts is None:  # the backend tokenizes
        if not add_special_tokens:
            raise unsupported("add_special_tokens")
        return [Prompt(each.text, []) for each in texts]
    prompts = await model.tokenize_all(
        [each.text for each in texts],
        add_special_tokens=add_special_tokens,
        truncation=truncation,
        params=[each.param for each in texts],
    )
    for prompt, each in zip(prompts, texts, strict=True):
        _check_not_empty(prompt, each.param)
    return prompts


def _checked(prompt: TokenIds, model: Describes, truncation: Truncation | None) -> Prompt:
    _check_vocabulary(prompt, model)
    token_ids = prompt.token_ids if truncation is None else truncation.kept(prompt.token_ids)
    context = model.facts.max_model_len
    if context is not None and len(token_ids) > context:
        message = (
            f"This model's maximum context length is {context} tokens. However, your "
            f"{prompt.param} resulted in {len(token_ids)} tokens. Please reduce the length of the "
            "input."
        )
        raise ContextLengthExceeded(message, param=prompt.param)
    return Prompt(text=None, token_ids=token_ids)


def _check_vocabulary(prompt: TokenIds, model: Describes) -> None:
    if model.facts.vocab_size is None:
        return
    try:
        check_in_vocabulary(prompt.token_ids, model.facts.vocab_size, prompt.param)
    except InvalidRequest as error:
        message = f"{error.message} {VOCABULARY_HINT}"
        raise InvalidRequest(message, param=prompt.param) from None


def _check_not_empty(prompt: Prompt, param: str) -> None:
    """Tokenizers without special tokens return nothing for an empty text."""
    if not prompt.token_ids:
        message = f"Invalid '{param}': the input has no tokens."
        raise InvalidRequest(message, param=param, code="empty_string")


def input_truncation(
    truncate_prompt_tokens: int | None, side: Literal["left", "right"] | None, model: Renders
) -> Truncation | None:
    """How to truncate inputs; None if each must fit. -1 truncates to the model's context."""
    tokens, context = truncate_prompt_tokens, model.facts.max_model_len
    if tokens is None:
        return None
    if model.prompts is None or context is None:
        raise unsupported("truncate_prompt_tokens")
    if tokens > context:
        message = (
            "Invalid 'truncate_prompt_tokens': integer above maximum value. "
            f"Expected a value <= {context}, but got {tokens} instead."
        )
        raise InvalidRequest(
            message, param="truncate_prompt_tokens", code="integer_above_max_value"
        )
    # like vLLM and the models' tokenizers, keep the beginning
    return Truncation(context if tokens < 1 else tokens, side or "right")


def embedding_request(
    id: str,
    prompt: Prompt,
    *,
    task: PoolingTask = "embed",
    dimensions: int | None = None,
    use_activation: bool | None = None,
    param: str | None = None,
) -> EmbedRequest:
    return EmbedRequest(
        request_id=id,
        prompt=prompt.text,
        prompt_token_ids=prompt.token_ids or None,
        images=prompt.images,
        task=task,
        dimensions=dimensions,
        use_activation=use_activation,
        param=param,
    )


def embedding_requests(
    id: str,
    prompts: Sequence[Prompt],
    *,
    task: PoolingTask = "embed",
    dimensions: int | None = None,
    use_activation: bool | None = None,
) -> list[EmbedRequest]:
    """The requests for the inputs of one call."""
    return [
        embedding_request(
            f"{id}-{at}",
            prompt,
            task=task,
            dimensions=dimensions,
            use_activation=use_activation,
            param=f"input[{at}]" if len(prompts) > 1 else None,
        )
        for at, prompt in enumerate(prompts)
    ]


Result = TypeVar("Result")
PooledVectors = Awaitable[Sequence[EmbeddingResult]]
# Embeds or scores the inputs at these positions with one Triton request
Pool = Callable[[range], Awaitable[Sequence[Result]]]


async def gather_batches(
    pool: Pool[Result], costs_us: Sequence[float], granted: int, limit: int
) -> list[Result]:
    """Results for all inputs, in batches of up to `limit`. Each input takes one of the granted
    slots while it runs. The first failure cancels the rest.

    `costs_us`: the event loop time of each input in a batch.
    """
    batches, parallel = _batches(costs_us, granted, limit)
    batch_results = await gather_bounded(pool, batches, parallel)
    return [each for results in batch_results for each in results]


def _batches(costs_us: Sequence[float], granted: int, limit: int) -> tuple[list[range], int]:
    """The positions of each batch, and how many batches the granted slots run at the same time.

    If more inputs wait, several batches run, so that the engine never waits for the slowest of
    one.
    """
    count = len(costs_us)
    if count == 1:
        return [range(1)], 1
    most = min(limit, granted if granted >= count else max(1, granted // 4))
    if most == 1:
        return [range(at, at + 1) for at in range(count)], granted
    batches, first, cost_us = [], 0, 0.0
    for at, added_us in enumerate(costs_us):
        if at > first and (at - first == most or cost_us + added_us > SLICE_US):
            batches.append(range(first, at))
            first, cost_us = at, 0.0
        cost_us += added_us
    batches.append(range(first, count))
    # Long prompts make smaller batches, of which more fit into the slots
    parallel = granted if granted >= count else granted // max(map(len, batches))
    return batches, min(parallel, len(batches))


# Event loop time, in the gateway and the engine: measured with the mock engine
_REQUEST_US, _INPUT_US, _TOKEN_US = 50.0, 15.0, 0.03
_TEXT_US = 1.0  # an input of a model that tokenizes itself: its request and its row of two tensors
_CHARACTER_US = 0.009  # to write a text as JSON, if every character is escaped


def pooling_cost_us(prompts: Sequence[Sequence[int]]) -> float:
    """Event loop time to send prompts to the model with one request, in the gateway and the
    engine.
    """
    return _REQUEST_US + (len(prompts) - 1) * _INPUT_US + sum(map(len, prompts)) * _TOKEN_US


def input_costs_us(prompts: Sequence[Prompt]) -> list[float]:
    """The event loop time of each prompt in a batch, as token ids or else as text."""
    return [
        _INPUT_US + len(each.token_ids) * _TOKEN_US
        if each.token_ids
        else _TEXT_US + len(each.text or "") * _CHARACTER_US
        for each in prompts
    ]


def embedding_cost_us(prompts: Sequence[Prompt]) -> float:
    """Like `pooling_cost_us`; a prompt that the backend tokenizes is sent as text."""
    characters = sum(len(each.text or "") for each in prompts if not each.token_ids)
    return pooling_cost_us([each.token_ids for each in prompts]) + characters * _CHARACTER_US


def similarity_cost_us(vector: memoryview) -> float:
    """The event loop time that `cosine_similarity` takes."""
    return 8 + vector.nbytes * 0.00025


def decoding_cost_us(token_ids: Sequence[int]) -> float:
    """The event loop time to decode tiktoken's ids."""
    return 1 + len(token_ids) * 0.09


# Per iteration for all such work, and so what other work waits at most
SLICE_US = 1000.0


class TimeSlicer:
    """Spreads many small pieces of work over iterations of the event loop, without threads.

    First come, first served.
    """

    def __init__(self) -> None:
        self._left_us = SLICE_US
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._scheduled = False  # the next slice

    async def take(self, cost_us: float) -> None:
        """Return immediately if this slice has time left, else in a later slice."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start_slice)
        if self._left_us > 0:
            self._left_us -= cost_us
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((cost_us, granted))
        await granted

    def _start_slice(self) -> None:
        """Serve waiting work. If none waits, the next `take` schedules the next slice."""
        self._left_us = SLICE_US
        while self._waiting and self._left_us > 0:
            cost_us, granted = self._waiting.popleft()
            if not granted.done():  # its caller may have been cancelled
                granted.set_result(None)
                self._left_us -= cost_us
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._start_slice)


def _embed(requests: Sequence[EmbedRequest], permit: Permit) -> PooledVectors:
    return permit.embed(requests)


Row = TypeVar("Row")
Vector = numpy.ndarray[Any, numpy.dtype[numpy.float32]]
# The result at a position in the form of the response, made in slices
Render = Callable[[int, EmbeddingResult, TimeSlicer], Awaitable[Row]]


def at_once(
    render: Callable[[int, memoryview], Row],  # of a position and its vector
    cost_us: Callable[[memoryview], float],  # the event loop time of `render`
) -> Render[Row]:
    """For vectors that are rendered within one slice."""

    async def rendered(at: int, result: EmbeddingResult, slicer: TimeSlicer) -> Row:
        await slicer.take(cost_us(result.embedding))
        return render(at, result.embedding)

    return rendered


@dataclass(frozen=True, slots=True)
class Pooled(Generic[Row]):
    """The results of all inputs, each as rendered."""

    rows: list[Row]
    prompt_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}


class Pooler:
    """Runs inputs in pooling models. Renders a batch on arrival, which frees its tensor."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._slicer = TimeSlicer()

    async def run(
        self,
        requests: Sequence[EmbedRequest],
        prompts: Sequence[Prompt],
        model: Generates,
        *,
        render: Render[Row],
        pool: Callable[[Sequence[EmbedRequest], Permit], PooledVectors] = _embed,
        reserves: bool = True,
    ) -> Pooled[Row]:
        """Pool the inputs of one call, whose `requests` have the same task. Without `reserves`,
        they may overdraw the caller's key: they are part of a request that runs.
        """
        prompt_tokens = 0

        async def run_batch(batch: range) -> list[Row]:
            nonlocal prompt_tokens
            first, end = batch.start, batch.stop
            await self._slicer.take(embedding_cost_us(prompts[first:end]))
            rows = []
            for at, result in enumerate(await pool(requests[first:end], permit), first):
                # not every backend counts
                prompt_tokens += result.prompt_tokens or len(prompts[at].token_ids)
                rows.append(await render(at, result, self._slicer))
            return rows

        tokenized = all(prompt.token_ids for prompt in prompts)
        limit = model.batch_limit(requests[0].task, tokenized=tokenized)
        context, wanted = current_request(), len(requests)
        first = requests[0] if reserves else None
        async with self._admission.enter(context, model, first, wanted=wanted) as permit:
            costs_us = input_costs_us(prompts)
            rows = await gather_batches(run_batch, costs_us, permit.granted, limit)
        return Pooled(rows, prompt_tokens)


def render(index: int, vector: memoryview, *, as_base64: bool) -> bytes:
    """One element of the response's `data`, as JSON, straight from tensor memory.

    16 vectors of 4,096 numbers take 0.1 ms as base64, 2.2 ms as numbers, 15 ms through pydantic.
    """
    numbers = finite_numbers(vector)
    if as_base64:
        # Base64 needs no escaping. pybase64: 16 KB in 0.6 us, where Python's own takes 15.
        encoded = pybase64.b64encode(vector)
        return b'{"object":"embedding","index":%d,"embedding":"%b"}' % (index, encoded)
    encoded = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
    return b'{"object":"embedding","index":%d,"embedding":%b}' % (index, encoded)


def pooled_list(data: list[bytes], fields: dict[str, Any]) -> bytes:
    """The response's JSON from rendered elements, which are copied once."""
    rest = orjson.dumps(fields)
    after = ([b",", each] for each in data[1:])
    parts = [b'{"object":"list","data":[', data[0], *chain.from_iterable(after), b"],", rest[1:]]
    return b"".join(parts)


def rendering_cost_us(vector: memoryview, *, as_base64: bool) -> float:
    """The event loop time that `render` takes."""
    return 5 + vector.nbytes * (0.0005 if as_base64 else 0.01)


def class_scores(index: int, vector: memoryview, labels: Sequence[str]) -> Vector:
    """A classifier's scores of one input, one for each label. Raises MalformedOutput."""
    numbers = numpy.frombuffer(vector, "<f4")
    if not numpy.isfinite(numbers).all():
        raise MalformedOutput(f"The model returned a score for input[{index}] that is not finite.")
    if len(numbers) != len(labels):
        raise MalformedOutput(
            f"The model returned {len(numbers)} scores for input[{index}], but has "
            f"{len(labels)} labels."
        )
    return numbers


def finite_numbers(vector: memoryview) -> Vector:
    """The tensor's numbers. Raises InferenceFailed for values that JSON cannot express."""
    numbers = numpy.frombuffer(vector, "<f4")
    if not numpy.isfinite(numbers).all():
        raise InferenceFailed("The model returned a vector with non-finite values.")
    return numbers


def check_dimensions(dimensions: int | None, model: Describes) -> int | None:
    """The `dimensions` to ask the model for. Shorter vectors are only useful from models that were
    trained for them.
    """
    own = model.facts.dimensions
    if dimensions is None or dimensions == own:
        return None
    if model.facts.matryoshka is False:
        raise no_dimensions()
    if own is not None and dimensions > own:
        message = (
            f"Invalid value for 'dimensions' = {dimensions}. Must be less than or equal to {own}."
        )
        raise InvalidRequest(message, param="dimensions", code="integer_above_max_value")
    return dimensions


def no_dimensions() -> InvalidRequest:
    """The error for a model that was not trained for shorter vectors."""
    message = "This model does not support specifying dimensions."
    return InvalidRequest(message, param="dimensions", code="unsupported_parameter")


def cosine_similarity(first: memoryview, second: memoryview) -> float:
    """-1 to 1; 0 if one of the vectors is zero."""
    one, other = (finite_numbers(each).astype("f8") for each in (first, second))
    lengths = float(numpy.linalg.norm(one) * numpy.linalg.norm(other))
    return max(-1.0, min(1.0, float(one @ other) / lengths)) if lengths else 0.0
