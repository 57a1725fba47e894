"""Scripts of the mock engine: which turn a prompt gets, and its tokens."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from openai_frontend.engines.engine import EngineError, ModelSpec
from openai_frontend.engines.mock.script import PromptMarkers, Script, Turn
from openai_frontend.engines.mock.settings import read_settings
from tests.examples import scaled
from tests.fast.prompting import tiny_tokenizer

USER, END, RESULT = "<|im_start|>user\n", "<|im_end|>\n", "<tool_response>\nok\n</tool_response>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tiny_tokenizer.write(
        tmp_path_factory.mktemp("tokenizer"), added_tokens=tiny_tokenizer.QWEN_TOKENS
    )
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def answer(tokenizer: Tokenizer) -> Any:
    """The output for a prompt, by the text of the turns."""

    def get(prompt: str, *turns: dict[str, Any], **markers: str) -> str:
        script = Script([Turn(**turn) for turn in turns], PromptMarkers(**markers), tokenizer)
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        return "".join(delta.text for delta in script.output(None, ids))

    return get


def test_first_matching_turn_wins(answer):
    """Both of the last two turns match; the first one does not."""
    turns = [{"contains": "fox", "text": "a"}, {"contains": "dog", "text": "b"}, {"text": "c"}]

    assert answer(f"{USER}a dog{END}", *turns) == "b"


def test_only_the_last_user_message_is_searched(answer):
    """Neither earlier messages nor the answer to the last one."""
    turns = [{"contains": "dog", "text": "a"}, {"text": "b"}]
    prompt = f"{USER}a dog{END}{USER}a fox{END}<|im_start|>assistant\nthe dog{END}"

    assert answer(prompt, *turns) == "b"


@pytest.mark.parametrize("results", range(3))
def test_tool_results_since_the_last_user_message_count(answer, results):
    """Those before it do not; one user message of the template may have several."""
    turns = [{"after": number, "text": str(number)} for number in range(3)]
    old = f"{USER}old{END}{USER}{RESULT}{END}"
    new = f"{USER}\n{RESULT * results}{END}" if results else ""

    assert answer(f"{old}{USER}new{END}{new}", *turns) == str(results)


def test_markers_of_another_template(answer):
    """Llama 3's: tool results have a role of their own."""
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    prompt = f"{head.format('user')}go<|eot_id|>{head.format('ipython')}1<|eot_id|>"
    turns = [{"contains": "go", "after": 1, "text": "a"}, {"text": "b"}]
    markers = {"user": head.format("user"), "end": "<|eot_id|>"}

    assert answer(prompt, *turns, **markers, tool_result=head.format("ipython")) == "a"


def test_prompt_without_messages_is_the_message(answer):
    """As prompts of /v1/completions are."""
    assert answer("a dog", {"contains": "dog", "after": 0, "text": "a"}) == "a"


def test_error_names_the_turns(answer):
    """The client reads which prompts have an output, and how many tool results its own has."""
    with pytest.raises(EngineError, match=r"1 tool results after it.*'dog' and any number of"):
        answer(f"{USER}a fox{END}{USER}{RESULT}{END}", {"contains": "dog", "text": "a"})


def test_markup_of_a_family_is_one_token(tokenizer):
    """The engine sends the ids that a real model would."""
    script = Script([Turn(text="<think>a</think>")], PromptMarkers(), tokenizer)
    deltas = script.output("", None)

    assert [delta.text for delta in deltas] == ["<think>", "a", "</think>"]
    assert [tokenizer.id_to_token(*delta.token_ids) for delta in deltas] == [
        "<think>", "a", "</think>"
    ]  # fmt: skip


@given(text=st.text(alphabet=st.sampled_from("aö漢😀\n <>")))
@settings(max_examples=scaled(60), deadline=None)
def test_pieces_join_to_the_text(tokenizer, text):
    """Characters of several tokens are whole, and each token has one piece."""
    deltas = Script([Turn(text=text)], PromptMarkers(), tokenizer).output("", None)

    assert "".join(delta.text for delta in deltas) == text
    assert [id for delta in deltas for id in delta.token_ids] == tokenizer.encode(
        text, add_special_tokens=False
    ).ids


def test_character_ends_with_its_last_token(tokenizer):
    """An emoji of four tokens is in the last one's piece."""
    deltas = Script([Turn(text="a😀b")], PromptMarkers(), tokenizer).output("", None)

    assert [delta.text for delta in deltas] == ["a", "", "", "", "😀", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"turns": [{"text": "a"}]}, "set `tokenizer`"),
        ({"turns": [{"contains": "a"}], "tokenizer": "./t"}, "text"),
        ({"turns": [{"text": "a", "after": -1}], "tokenizer": "./t"}, "`after` must be a number"),
        ({"turns": [{"text": 1}], "tokenizer": "./t"}, "must be strings"),
        ({"turns": [{"text": "a", "when": 1}], "tokenizer": "./t"}, "when"),
        ({"markers": {"system": "a"}}, "system"),
    ],
)
def test_invalid_script_is_named(arguments, message):
    """The error has the file and the field."""
    spec = ModelSpec(name="m", version=1, folder=Path("m"), parameters={}, arguments=arguments)

    with pytest.raises(ValueError, match=rf"m/1/model\.json: .*{message}"):
        read_settings(spec)
