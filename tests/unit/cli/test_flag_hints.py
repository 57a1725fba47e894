"""Hints of `serve` for flags of vLLM and llama.cpp."""

import re

import pytest

from openai_frontend.cli import flag_hints, main
from openai_frontend.config.loader import options

FLAGS = {option.flag for option in options()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "org/m"], "unknown option --model; pass MODEL without a flag: openai-fr"),
        (["--max-model-len", "9"], "use --engine-arg max_model_len=... (with 'serve MODEL')"),
        (["--max_model_len=9"], "use --engine-arg max_model_len=... (with 'serve MODEL')"),
        (["--no-enable-prefix-caching"], "use --engine-arg enable_prefix_caching=false"),
        (["-tp", "2"], "unknown option -tp; use --engine-arg tensor_parallel_size=..."),
        (["-c", "4096"], "unknown option -c; use --engine-arg max_model_len=..."),
        (["-ngl", "99"], "not needed: vLLM puts the whole model on the GPU"),
        (["--enable-auto-tool-choice"], "not needed: tool calls work if"),
        (["--ssl-keyfile", "x"], "unknown option --ssl-keyfile; use --tls-key"),
        (["--alias", "x"], "unknown option --alias; use --served-model-name"),
    ],
)
def test_flag_of_another_server_gets_a_hint(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint is one line."""

    with pytest.raises(SystemExit):
        main(["serve", "org/m", *arguments])
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_only_serve_gives_hints(capsys: pytest.CaptureFixture[str]) -> None:
    """Other commands report an unknown option."""

    with pytest.raises(SystemExit):
        main(["check", "--model", "m"])
    assert "did you mean --model-option?" in capsys.readouterr().err


def test_every_suggested_option_exists() -> None:
    """Hints name only our own options."""

    named = set(re.findall(r"--[a-z-]+", " ".join(flag_hints._OTHER.values())))
    assert named - FLAGS == set()


def test_our_own_options_have_no_hint() -> None:
    """Such a hint would never be shown."""

    same = {f"--{name.replace('_', '-')}" for name in flag_hints._SAME_ARGUMENTS}
    assert FLAGS & (flag_hints._OTHER.keys() | flag_hints._ENGINE_ARGUMENTS.keys() | same) == set()
