"""Which parser reads the answer to a chat, if any does, and what it needs of the engine."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from openai_frontend.generation import GenerationRequest
from openai_frontend.models.served_model import ServedModel
from openai_frontend.parsing.event_buffer import MAX_ARGUMENTS
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.constraints import Constraint
from openai_frontend.serving.output.output_parsing import ParserConfig
from openai_frontend.serving.request.messages import prefilled_text
from openai_frontend.serving.request.sampling import SamplingSupport
from openai_frontend.serving.request.tools import Tools
from schemas.chat_completions import ChatCompletionRequest

# Tokens in which arguments do not grow too long, as text goes: 16 bytes for each would be many.
_SHORT_ANSWER = MAX_ARGUMENTS // 16
_INTERVAL = 256  # tokens between two looks at a longer answer that nobody streams
_PROMPTS_END = 64  # tokens, in which a template says whether the answer begins with reasoning


def needs_parser(tools: Tools, model: ServedModel) -> bool:
    """Whether a parser reads the answer; else its text is the answer, as it comes."""
    return tools.in_use or model.reading.reasoning


def keep_special_tokens(model: ServedModel) -> bool:
    """Whether the engine is asked to leave special tokens in the text, as some parsers need."""
    return model.reading.special_tokens and model.supports("skip_special_tokens")


def prompt_text(request: ChatCompletionRequest, prompt: Prompt, model: ServedModel) -> str:
    """What says whether the answer begins with reasoning: the prompt, or the end of one that was
    cut and so is known as tokens alone; where a message is continued, that message.
    """
    if request.continue_final_message:
        return prefilled_text(request.messages)
    if prompt.text is not None:
        return prompt.text
    return model.detokenize(list(prompt.token_ids[-_PROMPTS_END:]))


def parser_config(
    request: ChatCompletionRequest,
    tools: Tools,
    held: Constraint,
    prompt: str | None,
    model: ServedModel,
    variables: Mapping[str, Any],
) -> ParserConfig:
    """How each choice is read; `prompt` is the text that `prompt_text` gives, `variables` what the
    chat template was told.
    """
    return ParserConfig(
        tools=tools,
        parser=partial(
            model.reading.parser,
            tools.functions if tools.in_use else {},
            prompt=prompt,
            continued=bool(request.continue_final_message),
            forced=held.forced,
            any_call=held.any_call,
            variables=variables,
        ),
        token_bytes=model.token_bytes,
        reasoning=model.reading.reasoning,
        include_reasoning=request.include_reasoning is not False,
    )


def with_parser_needs(
    first: GenerationRequest, reading: ParserConfig, model: SamplingSupport
) -> GenerationRequest:
    """The request of an answer that is read: the model tells its tokens, by which those of the
    reasoning are counted, and tells them as they come where reading may end the answer: with its
    first call, or with arguments that grow too long.
    """
    told = replace(
        first,
        relay=None,
        return_token_ids=first.return_token_ids or model.supports("return_token_ids"),
    )
    if first.stream or not reading.tools.in_use or not model.supports("stream"):
        return told
    if not reading.tools.parallel:
        return replace(told, stream=True)
    most = first.sampling_params.max_tokens
    if most is not None and most <= _SHORT_ANSWER:
        return told
    interval = _INTERVAL if model.supports("stream_interval") else 1
    return replace(told, stream=True, stream_interval=interval)
