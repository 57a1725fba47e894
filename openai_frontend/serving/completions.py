"""Completions: request to answer, answer to Completion or chunks. No HTTP, no bytes."""

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.served_model import ServedModel
from openai_frontend.serving.admission import Admission
from openai_frontend.serving.answer import Answer, generation_requests, new_id
from openai_frontend.serving.endings import ChunkStream, collect
from openai_frontend.serving.fields import NEUTRAL_IN_COMPLETIONS, FieldPolicy
from openai_frontend.serving.limits import Limits
from openai_frontend.serving.sampling import room_for_answer, sampling_params
from openai_frontend.sse import COMPLETION_CHUNK
from schemas.completions import Completion, CompletionChoice, CompletionRequest
from schemas.completions import Prompt as WirePrompt

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class Completions:
    """What POST /v1/completions means, whatever carries it."""

    def __init__(self, limits: Limits, policy: FieldPolicy, admission: Admission) -> None:
        self._limits = limits
        self._policy = policy
        self._admission = admission

    async def prepare(self, request: CompletionRequest, model: ServedModel) -> Answer:
        """The answer, not yet begun; raises for what this model or server cannot honour."""
        n = request.n or 1
        prompts = _prompts(request.prompt)
        self._check(request, n, len(prompts))
        echo = _echo(request, prompts)
        id = new_id("cmpl")
        requests: list[GenerationRequest] = []
        for at, prompt in enumerate(prompts):
            prompt_id = f"{id}-{at}" if len(prompts) > 1 else id
            requests += await _requests(prompt_id, prompt, request, model)
        return Answer(
            id=id,
            model=model,
            admission=self._admission,
            requests=requests,
            n=n,
            stream_options=request.stream_options,
            echo=echo,
        )

    def _check(self, request: CompletionRequest, n: int, prompts: int) -> None:
        self._policy.check(request, NEUTRAL_IN_COMPLETIONS)
        self._limits.check_n(n)
        self._limits.check_prompts(prompts, n)
        if request.best_of is not None and request.best_of != n:
            message = "Unsupported parameter: 'best_of' is only supported where it equals 'n'."
            raise InvalidRequest(message, param="best_of", code="unsupported_parameter")


def _prompts(prompt: WirePrompt) -> list[str | list[int]]:
    """A list of prompts, whichever of the four forms the request has."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]
    return [*prompt]


def _echo(request: CompletionRequest, prompts: list[str | list[int]]) -> list[str]:
    if not request.echo:
        return []
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        message = "Unsupported parameter: 'echo' is only supported where the prompt is text."
        raise InvalidRequest(message, param="echo", code="unsupported_parameter")
    return texts


async def _requests(
    id: str, prompt: str | list[int], request: CompletionRequest, model: ServedModel
) -> list[GenerationRequest]:
    """The requests for one of the prompts."""
    tokenized = await _tokenize(prompt, model)
    max_tokens = room_for_answer(
        request.max_tokens or DEFAULT_MAX_TOKENS,
        prompt_tokens=len(tokenized.token_ids),
        context=model.max_model_len,
        param="prompt",
    )
    params = sampling_params(request, max_tokens, model.supports)
    return generation_requests(id, tokenized, params, request)


async def _tokenize(prompt: str | list[int], model: ServedModel) -> Prompt:
    if isinstance(prompt, str):
        return await model.tokenize(prompt)
    largest, vocab_size = max(prompt), model.vocab_size
    if vocab_size is not None and largest >= vocab_size:
        message = f"Invalid 'prompt': the model has no token {largest}; it has {vocab_size} tokens."
        raise InvalidRequest(message, param="prompt")
    return Prompt(text=None, token_ids=prompt)


def chunks(answer: Answer) -> ChunkStream:
    """The ending of a streamed answer."""
    return ChunkStream(answer, COMPLETION_CHUNK)


async def complete(answer: Answer) -> Completion:
    """The ending of a whole answer."""
    choices, usage = await collect(answer)
    return Completion(
        id=answer.id,
        created=answer.created,
        model=answer.model.name,
        choices=[
            CompletionChoice(index=index, text=choice.text, finish_reason=choice.finish_reason)
            for index, choice in enumerate(choices)
        ],
        usage=usage,
    )
