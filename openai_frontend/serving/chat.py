"""Chat completions: request to answer, answer to ChatCompletion or chunks. No HTTP, no bytes."""

from openai_frontend.prompting.prompt import Prompt
from openai_frontend.served_model import ServedModel
from openai_frontend.serving.admission import Admission
from openai_frontend.serving.answer import Answer, generation_requests, new_id
from openai_frontend.serving.endings import ChunkStream, collect
from openai_frontend.serving.fields import NEUTRAL_IN_CHAT, FieldPolicy
from openai_frontend.serving.limits import Limits
from openai_frontend.serving.messages import template_messages
from openai_frontend.serving.sampling import room_for_answer, sampling_params
from openai_frontend.sse import CHAT_COMPLETION_CHUNK
from schemas.chat_completions import (
    ChatCompletion,
    ChatCompletionChoice,
    ChatCompletionMessage,
    ChatCompletionRequest,
)


class ChatCompletions:
    """What POST /v1/chat/completions means, whatever carries it."""

    def __init__(self, limits: Limits, policy: FieldPolicy, admission: Admission) -> None:
        self._limits = limits
        self._policy = policy
        self._admission = admission

    async def prepare(self, request: ChatCompletionRequest, model: ServedModel) -> Answer:
        """The answer, not yet begun; raises for what this model or server cannot honour."""
        n = request.n or 1
        self._check(request, n)
        prompt = await self._render(request, model)
        max_tokens = room_for_answer(
            request.max_completion_tokens or request.max_tokens,
            prompt_tokens=len(prompt.token_ids),
            context=model.max_model_len,
            param="messages",
        )
        params = sampling_params(request, max_tokens, model.supports)
        id = new_id("chatcmpl")
        return Answer(
            id=id,
            model=model,
            admission=self._admission,
            requests=generation_requests(id, prompt, params, request),
            n=n,
            stream_options=request.stream_options,
        )

    def _check(self, request: ChatCompletionRequest, n: int) -> None:
        self._policy.check(request, NEUTRAL_IN_CHAT)
        self._limits.check_n(n)
        self._limits.check_messages(len(request.messages))

    async def _render(self, request: ChatCompletionRequest, model: ServedModel) -> Prompt:
        template_kwargs = dict(request.chat_template_kwargs or {})
        if request.reasoning_effort is not None:
            template_kwargs.setdefault("reasoning_effort", request.reasoning_effort)
        return await model.render_chat(
            template_messages(request.messages, self._policy),
            add_generation_prompt=request.add_generation_prompt is not False,
            template_kwargs=template_kwargs,
        )


def chunks(answer: Answer) -> ChunkStream:
    """The ending of a streamed answer."""
    return ChunkStream(answer, CHAT_COMPLETION_CHUNK)


async def complete(answer: Answer) -> ChatCompletion:
    """The ending of a whole answer."""
    choices, usage = await collect(answer)
    return ChatCompletion(
        id=answer.id,
        created=answer.created,
        model=answer.model.name,
        choices=[
            ChatCompletionChoice(
                index=index,
                message=ChatCompletionMessage(content=choice.text),
                finish_reason=choice.finish_reason,
            )
            for index, choice in enumerate(choices)
        ],
        usage=usage,
    )
