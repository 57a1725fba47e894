"""Model options from the model's file and from settings."""

from pathlib import Path

import pytest

from openai_frontend.config import model_options
from openai_frontend.config.model_options import ModelOptions, by_model, is_name, of_model, read
from openai_frontend.errors import ModelUnavailable


def write(folder: Path, text: str) -> Path:
    (folder / model_options.FILE).write_text(text)
    return folder


def test_model_without_a_file_has_defaults(tmp_path: Path) -> None:
    """The same holds for a model loaded from memory, which has no folder."""

    assert read(tmp_path) == read(None) == ModelOptions()


def test_options_from_the_file(tmp_path: Path) -> None:
    """Paths that start with a dot are relative to the model's folder; others are unchanged."""

    write(tmp_path, "aliases: [a, org/b]\ntokenizer: ./t\nchat_template: chatml\nmax_model_len: 8")
    assert read(tmp_path) == ModelOptions(
        aliases=("a", "org/b"),
        tokenizer=f"{tmp_path}/t",
        chat_template="chatml",
        max_model_len=8,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("reasoning_effort_map: {high: hugest}", "'hugest' is not an effort; use one of none, min"),
        ("max_model_length: 8", "unknown option 'max_model_length'; did you mean 'max_model_len'?"),
        ("xyzzy: 1", "unknown option 'xyzzy'"),
        ("max_model_len: 0", "max_model_len: must be at least 1"),
        ("aliases: [../up]", "aliases.0: a name may contain letters"),
        ("- a", "must contain options"),
        ("a: [", "expected node content"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: !!bool x", "'x'"),
        ("moderation: {labels: {a: insult}}", "moderation.labels.a: unknown category 'insult'"),
        ("moderation: {labels: {a: hates}}", "did you mean 'hate'"),
        ("moderation: {labels: {}}", "moderation.labels: "),
        ("moderation: {threshold: 0.5}", "moderation.labels: "),
        ("moderation: {labels: {a: hate}, threshold: 1.1}", "moderation.threshold: "),
        ("moderation: {labels: {a: hate}, threshold: -0.1}", "moderation.threshold: "),
        ("moderation: {labels: {a: hate}, threshold: .nan}", "moderation.threshold: "),
        ("moderation: {labels: {a: hate}, thresholds: {hate: 2}}", "moderation.thresholds.hate: "),
        ("moderation: {labels: {a: hate}, thresholds: {bad: 1}}", "unknown category 'bad'"),
        ("moderation: {labels: {a: hate}, thresholds: {sexual: 1}}", "no label has that category"),
        ("moderation: {labels: {a: hate}, limit: 1}", "unknown option 'moderation.limit'"),
        ("moderation: [a]", "moderation: "),
    ],
)
def test_error_names_the_file_and_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    """The message is one line."""

    write(tmp_path, text)
    with pytest.raises(ModelUnavailable) as refused:
        read(tmp_path)
    assert refused.value.message.startswith(f"{tmp_path / model_options.FILE}: ")
    assert reason in refused.value.message
    assert "\n" not in refused.value.message


def test_precedence_of_options(tmp_path: Path) -> None:
    """Settings of the model override its file, which overrides settings of `*`."""

    write(tmp_path, "max_model_len: 2\nmax_concurrent_requests: 2")
    settings = {
        "*": ModelOptions(max_model_len=1, max_concurrent_requests=1, max_output_tokens=1),
        "m": ModelOptions(max_model_len=3),
    }
    found = of_model("m", tmp_path, settings)
    assert (found.max_model_len, found.max_concurrent_requests, found.max_output_tokens) == (
        3,
        2,
        1,
    )


def test_settings_of_one_option_override_model_option() -> None:
    """`tool_call_parser` overrides the same option in `model_option`."""

    joined = by_model(
        {"m": ModelOptions(tool_call_parser="a", max_concurrent_requests=1)},
        tool_call_parser={"m": "b", "*": "c"},
    )
    assert joined == {
        "m": ModelOptions(tool_call_parser="b", max_concurrent_requests=1),
        "*": ModelOptions(tool_call_parser="c"),
    }


@pytest.mark.parametrize("name", ["a", "Qwen/Qwen3-8B", "gpt-4o.mini", "0"])
def test_valid_names(name: str) -> None:
    """Names of models on Hugging Face are valid."""

    assert is_name(name)


LEADS_ELSEWHERE = ["", "..", "../a", "a/../b", "/a", "a/", "a//b", "a\0", ".hidden", "-flag"]
MEANS_SOMETHING = ["a@2", "a:b", "a b", "a\n", "\u00e4", "x" * 129]


@pytest.mark.parametrize("name", [*LEADS_ELSEWHERE, *MEANS_SOMETHING])
def test_invalid_names(name: str) -> None:
    """Names that would escape the folder as a path, or have a meaning in requests."""

    assert not is_name(name)
