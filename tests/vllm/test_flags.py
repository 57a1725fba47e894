"""Engine flags of `vllm serve` in the command line of `serve`, read with vLLM's own parser."""

import json
from typing import Any

import pytest

from openai_frontend.cli.flags import engine, engine_names
from openai_frontend.cli.flags.command_line import CommandLine, rewrite
from openai_frontend.engines.vllm import flags
from tests.medium.cli.test_flags import OWN


def read(*words: str) -> CommandLine:
    return rewrite(words, OWN)


def arguments(line: CommandLine) -> dict[str, Any]:
    assert line.problems == []
    pairs = (word.split("=", 1) for word in line.words if "=" in word)
    return {name: json.loads(value) for name, value in pairs}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-model-len", "100"], {"max_model_len": 100}),
        (["--max_model_len=1k"], {"max_model_len": 1000}),
        (["--max-model-len", "-1"], {"max_model_len": -1}),
        (["-tp", "2", "-dp=2"], {"tensor_parallel_size": 2, "data_parallel_size": 2}),
        (["--trust-remote-code"], {"trust_remote_code": True}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--enable-prefix-caching=false"], {"enable_prefix_caching": False}),
        (["--enable-lora"], {"enable_lora": True}),
        (["--revision", "123"], {"revision": "123"}),
        (["-O3"], {"optimization_level": "3"}),
        (["-O", "3"], {"optimization_level": "3"}),
        (["--limit-mm-per-prompt", '{"image": 2}'], {"limit_mm_per_prompt": {"image": 2}}),
        (["--limit-mm-per-prompt.image", "2"], {"limit_mm_per_prompt": {"image": 2}}),
        (["--mm-processor-kwargs", '{"a": 1}'], {"mm_processor_kwargs": {"a": 1}}),
        (["--compilation-config", '{"mode": 3}'], {"compilation_config": {"mode": 3}}),
        (["--compilation-config.mode", "3"], {"compilation_config": {"mode": 3}}),
        (["-cc.mode=3"], {"compilation_config": {"mode": 3}}),
        (
            ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        (["--cudagraph-capture-sizes", "1", "2"], {"cudagraph_capture_sizes": [1, 2]}),
        (["--seed=1", "--dtype", "half"], {"seed": 1, "dtype": "half"}),
    ],
)
def test_engine_flag_becomes_an_engine_argument(words: list[str], expected: dict[str, Any]) -> None:
    """The values have vLLM's types. MODEL may be before or after."""

    assert arguments(read("org/m", *words)) == expected
    assert arguments(read(*words, "--port", "1", "org/m")) == expected


def test_invalid_values_are_all_reported_in_vllms_words() -> None:
    """Each on one line."""

    words = ["--max-model-len", "x", "--runner=y", "--compilation-config", "{", "--seed", "1"]
    first, second, third = read("org/m", *words).problems
    assert first.startswith("--max-model-len: invalid ")
    assert second.startswith("--runner: invalid choice: 'y' (choose from ")
    assert third.startswith("--compilation-config: 1 validation error for CompilationConfig: ")
    assert "\n" not in first + second + third


def test_table_of_engine_flags_is_vllms() -> None:
    """Names, and how many values each takes, as far as this vLLM has them."""

    for action in flags._parser()._actions:
        for name in action.option_strings:
            plain = name.removeprefix("--").removeprefix("no-")
            if plain in engine_names.ONE:
                assert action.nargs in (None, "?"), name
            if plain in engine_names.SEVERAL:
                assert action.nargs == "+", name
            if plain in engine_names.SWITCHES:
                assert action.nargs == 0, name
            if name in engine_names.SHORT:
                assert engine_names.SHORT[name] in action.option_strings


def test_every_engine_flag_of_the_installed_vllm_is_known() -> None:
    """Also flags that the table does not have."""

    names = {name for action in flags._parser()._actions for name in action.option_strings}
    assert {name for name in names if engine.takes(name) is None} == set()
