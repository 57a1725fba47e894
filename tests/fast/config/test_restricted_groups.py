"""The options of restricted groups: their forms, what is refused, and that values stay secret."""

from pathlib import Path
from typing import Any

import pytest

from openai_frontend.auth.restrictions import restrictions
from openai_frontend.cli.flags.command_line import rewrite
from openai_frontend.config.loader import InvalidSettings, load
from openai_frontend.config.restricted_groups import GRPC, HTTP, OPENAI

SECRET = "canary-77aa"


def headers_of(option: str, **sources: Any) -> dict[str, str]:
    """Group -> header."""
    found = restrictions(load(**sources).triton_option, option)
    return {group: each.header for group, each in found.items()}


def test_option_repeats() -> None:
    """Each group has its own header."""
    flags = {"triton_option": [f"{HTTP}=health,trace:A=x=1", f"{HTTP}=inference:b={SECRET}"]}

    assert headers_of(HTTP, flags=flags) == {"health": "A", "trace": "A", "inference": "b"}


def test_metadata_keys_have_a_prefix() -> None:
    flags = {"triton_option": [f"{GRPC}=health:Admin-Key=x"]}

    assert headers_of(GRPC, flags=flags) == {"health": "triton-grpc-protocol-Admin-Key"}


def test_groups_are_separated_by_commas_in_the_environment_too() -> None:
    text = f"log-verbose=1,{HTTP}=health,trace:a=1,grpc-port=1,{HTTP}=logging:b=2"
    environment = {"OPENAI_FRONTEND_TRITON_OPTION": text}

    found = headers_of(HTTP, environment=environment)
    assert found == {"health": "a", "trace": "a", "logging": "b"}
    assert load(environment=environment).triton_option["grpc-port"] == ["1"]


def test_yaml_lists_several(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f'triton_option: {{{OPENAI}: ["metrics:a=1", "health:b=2"]}}')

    assert headers_of(OPENAI, config=file) == {"metrics": "a", "health": "b"}


REFUSED = {
    (f"{HTTP}=health:k={SECRET}", f"{HTTP}=trace,health:k={SECRET}"): "'health' is restricted",
    (f"{HTTP}=helth:k={SECRET}",): "unknown group 'helth'; the groups are health, metadata,",
    (f"{HTTP}=metrics:k={SECRET}",): "unknown group 'metrics'",
    (f"{OPENAI}=trace:k={SECRET}",): "the groups are inference, model-repository, metrics, health",
    (f"{HTTP}=health,:k={SECRET}",): "empty group",
    (f"{HTTP}=health:{SECRET}",): "must have the form",
    (f"{HTTP}={SECRET}",): "must have the form",
    (f"{HTTP}=health:a b={SECRET}",): "HEADER is not",
    (f"{HTTP}=health:a={SECRET}\u00e9",): "VALUE must have",
    (f"{HTTP}=health:a={SECRET}\n{SECRET}",): "VALUE must have",
    (f"{GRPC}=health:a!={SECRET}",): "HEADER is not",
    (f"{HTTP}=health:k={SECRET}", "log-verbose=x"): "'x' is neither a level",
    (f"{HTTP}=health:k={SECRET}", SECRET): "an item has not the form",
}


@pytest.mark.parametrize(("items", "reason"), REFUSED.items(), ids=str)
def test_errors_name_the_reason_and_not_the_value(items: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        load(flags={"triton_option": list(items)})

    assert reason in str(refused.value)
    assert SECRET not in str(refused.value)


def test_rest_of_a_value_with_a_comma_is_not_shown() -> None:
    """In the environment, a comma ends the option."""
    environment = {"OPENAI_FRONTEND_TRITON_OPTION": f"{HTTP}=health:k=a,{SECRET}"}
    with pytest.raises(InvalidSettings) as refused:
        load(environment=environment)

    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "flag",
    [
        f"--http-restricted-api=health:k={SECRET}",
        f"--grpc-restricted-protocol health:k={SECRET}",
        f"--openai-restricted-api health k {SECRET}",
        f"--openai-restricted-api health k -{SECRET}",
        f"--triton-option {HTTP}=health:k={SECRET}",
        f"--http-restricted-api=helth:k={SECRET}",
    ],
)
def test_corrected_command_line_hides_the_value(flag: str) -> None:
    line = rewrite([*flag.split(), "--frobnicate", "--alias", "x"], {})

    assert line.problems
    assert SECRET not in line.report("p")


def test_quoted_words_are_those_of_nvidias_page() -> None:
    """And words that follow are not the flag's."""
    line = rewrite(["--openai-restricted-api", f"inference api-key {SECRET}", "org/m"], {})

    assert line.words == ["org/m", "--triton-option", f"{OPENAI}=inference:api-key={SECRET}"]
    plain = rewrite(["--openai-restricted-api", "health", "k", SECRET, "org/m"], {})
    assert plain.words == ["org/m", "--triton-option", f"{OPENAI}=health:k={SECRET}"]


def test_only_the_digest_is_kept() -> None:
    settings = load(flags={"triton_option": [f"{HTTP}=health:k={SECRET}"]})
    [restriction] = restrictions(settings.triton_option, HTTP).values()

    assert restriction.allows([(b"k", SECRET.encode())])
    assert not restriction.allows([(b"k", b"canary")])
    assert SECRET not in repr(vars(restriction))
