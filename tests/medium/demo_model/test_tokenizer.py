"""The committed tokenizer and chat template."""

import pytest

pytestmark = pytest.mark.slow  # loads the tokenizer that training uses

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "São Paulo"}},
}
GOLDEN = """\
<|im_start|>system
Be brief.

You may call these tools:
<tools>
{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a \
city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": \
["city"]}}}
</tools>
Write each call as JSON with name and arguments within <tool_call></tool_call>.<|im_end|>
<|im_start|>user
Is it warm in São Paulo?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "get_weather", "arguments": {"city": "São Paulo"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
{"temperature": 30}
</tool_response><|im_end|>
<|im_start|>assistant
"""


def render(tokenizer, messages, **options):
    """The prompt's text."""
    return tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **options
    )


@pytest.mark.parametrize(
    "text",
    [
        "What is Triton?",
        '{"name": "get_weather", "arguments": {"city": "São Paulo"}}',
        "  two  spaces\n\n\tand a tab \n",
        "日本語, emoji 🦙 and ﬁne print",
        "12 + 345 = 357.",
    ],
)
def test_decoding_restores_the_text(tokenizer, text):
    """Any encoded text decodes to the same text."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chatml_tokens_are_one_token_each(tokenizer):
    """Special tokens are not split, and an answer ends with <|im_end|>."""
    ids = tokenizer.encode("<|endoftext|><|im_start|><|im_end|>")

    assert ids == [0, 1, 2]
    assert tokenizer.eos_token_id == 2


def test_tool_call_markers_are_text(tokenizer):
    """<tool_call> is one token that skip_special_tokens keeps."""
    ids = tokenizer.encode("<tool_call>\n</tool_call><|im_end|>")

    assert len(ids) == 4
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>\n</tool_call>"


def test_tools_call_and_result_in_hermes_format(tokenizer):
    """The template renders tools, a call and its result exactly."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it warm in São Paulo?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 30}'},
    ]

    assert render(tokenizer, messages, tools=[WEATHER]) == GOLDEN


def test_arguments_may_be_text(tokenizer):
    """OpenAI's clients send a call's arguments as JSON text: the prompt is the same."""
    function = {"name": "get_weather", "arguments": '{"city": "São Paulo"}'}
    as_text = {**CALL, "function": function}

    prompts = [
        render(tokenizer, [{"role": "assistant", "content": "", "tool_calls": [call]}])
        for call in (CALL, as_text)
    ]

    assert prompts[0] == prompts[1]
