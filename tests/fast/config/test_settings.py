"""Settings from flags, environment and YAML: precedence, formats and error messages."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from openai_frontend.config.loader import InvalidSettings, load, options
from openai_frontend.config.settings import Settings

SECRET = "sk-canary-8d1f"


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_options_contain_every_setting_once() -> None:
    """Each setting is in exactly one group."""

    assert sorted(option.name for option in options()) == sorted(Settings.model_fields)


def test_help_ends_with_a_full_stop() -> None:
    """The help consists of sentences."""

    assert [each.name for each in options() if not each.field.description.endswith(".")] == []


def test_defaults_are_valid() -> None:
    """Defaults pass the validation of given values."""

    defaults = Settings().model_dump(exclude_none=True)
    assert Settings.model_validate(defaults) == Settings()


@pytest.mark.parametrize(
    ("name", "value"), [("host", "127.0.0.1"), ("port", 9000), ("unknown_fields", "warn")]
)
def test_defaults_are_safe(name: str, value: object) -> None:
    """By default the gateway listens on the loopback address only."""

    assert getattr(load(), name) == value


def test_unknown_setting_is_rejected() -> None:
    """Code cannot misspell a setting either."""

    with pytest.raises(ValidationError, match="prot"):
        Settings.model_validate({"prot": 1})


def test_precedence_of_sources(tmp_path: Path) -> None:
    """Flags override the environment, which overrides the file, which overrides defaults."""

    settings = load(
        flags={"max_n": "1"},
        environment={"OPENAI_FRONTEND_MAX_N": "2", "OPENAI_FRONTEND_PORT": "2"},
        config=yaml_file(tmp_path, "max_n: 3\nport: 3\nhost: ::1\n"),
    )
    assert (settings.max_n, settings.port, settings.host) == (1, 2, "::1")


@pytest.mark.parametrize(
    ("name", "flag", "environment", "yaml", "value"),
    [
        ("model_repository", ["a", "b"], "a,b", "[a, b]", [Path("a"), Path("b")]),
        ("model_repository", ["a"], "a", "a", [Path("a")]),
        ("load_model", ["x", "y"], "x,y", "[x, y]", ["x", "y"]),
        (
            "backend_config",
            ["vllm:a=true", "vllm:b=1"],
            "vllm:a=true,vllm:b=1",
            "{vllm: {a: true, b: 1}}",
            {"vllm": {"a": "true", "b": "1"}},
        ),
        ("served_model_name", ["x", "org/y"], "x,org/y", "[x, org/y]", ["x", "org/y"]),
        (
            "engine_arg",
            ["max-model-len=8", "dtype=half", "enforce_eager=true"],
            "max_model_len=8,dtype=half,enforce_eager=true",
            "{max_model_len: 8, dtype: half, enforce_eager: true}",
            {"max_model_len": 8, "dtype": "half", "enforce_eager": True},
        ),
        (
            "triton_option",
            ["log-verbose=1", "log-info=true", "rate-limit-resource=r:4"],
            "log-verbose=1,log-info=true,rate-limit-resource=r:4",
            "{log-verbose: 1, log-info: true, rate-limit-resource: 'r:4'}",
            {"log-verbose": ["1"], "log-info": ["true"], "rate-limit-resource": ["r:4"]},
        ),
        (
            "triton_option",
            ["host-policy=a:k=v", "host-policy=b:k=v"],
            "host-policy=a:k=v,host-policy=b:k=v",
            "{host-policy: ['a:k=v', 'b:k=v']}",
            {"host-policy": ["a:k=v", "b:k=v"]},
        ),
        ("chat_template", ["chatml"], "chatml", "chatml", {"*": "chatml"}),
        (
            "chat_template",
            ["a=llama3", "./b=c.jinja"],
            "a=llama3,./b=c.jinja",
            "{a: llama3, '*': ./b=c.jinja}",
            {"a": "llama3", "*": "./b=c.jinja"},
        ),
        (
            "tool_call_parser",
            ["hermes", "a=vllm:mistral", "b=pkg.mod:Class"],
            "hermes,a=vllm:mistral,b=pkg.mod:Class",
            "{'*': hermes, a: 'vllm:mistral', b: 'pkg.mod:Class'}",
            {"*": "hermes", "a": "vllm:mistral", "b": "pkg.mod:Class"},
        ),
        ("reasoning_parser", ["none"], "none", "none", {"*": "none"}),
        (
            "metrics_config",
            ["summary_latencies=true", "summary_quantiles=0.5:0.05,0.9:0.01", "m:k=v", "n,k=a=b"],
            "summary_latencies=true,summary_quantiles=0.5:0.05,0.9:0.01,m:k=v,n:k=a=b",
            "{summary_latencies: true, '': {summary_quantiles: '0.5:0.05,0.9:0.01'}, "
            "m: {k: v}, n: {k: a=b}}",
            {
                "": {"summary_latencies": "true", "summary_quantiles": "0.5:0.05,0.9:0.01"},
                "m": {"k": "v"},
                "n": {"k": "a=b"},
            },
        ),
        (
            "backend_config",
            [":default-max-batch-size=4"],
            ":default-max-batch-size=4",
            "{default-max-batch-size: 4}",
            {"": {"default-max-batch-size": "4"}},
        ),
        ("metrics", False, "false", "false", False),
        ("triton_library", "/l.so", "/l.so", "/l.so", Path("/l.so")),
    ],
)
def test_flag_environment_and_yaml_are_equivalent(
    tmp_path: Path, name: str, flag: Any, environment: str, yaml: str, value: object
) -> None:
    """Repeated flags, commas in the environment and YAML give the same value."""

    written = (
        load(flags={name: flag}),
        load(environment={f"OPENAI_FRONTEND_{name.upper()}": environment}),
        load(config=yaml_file(tmp_path, f"{name}: {yaml}")),
    )
    assert [getattr(settings, name) for settings in written] == [value] * 3


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"flags": {"port": "x"}}, "--port: must be a whole number"),
        (
            {"environment": {"OPENAI_FRONTEND_PORT": "70000"}},
            "OPENAI_FRONTEND_PORT: must be at most 65535",
        ),
        ({"flags": {"unknown_fields": "x"}}, "--unknown-fields: must be 'warn', "),
        (
            {"flags": {"triton_option": ["host-policy=a=b"]}},
            "--triton-option: host-policy: 'a=b' must have the form NAME:KEY=VALUE",
        ),
        ({"flags": {"cache_config": ["size=9"]}}, "'size' must have the form NAME:KEY=VALUE"),
        ({"flags": {"backend_config": ["vllm:a"]}}, r"'vllm:a' must have the form \[NAME:\]KEY="),
        ({"flags": {"backend_config": ["vllm:=a"]}}, r"'vllm:=a' must have the form \[NAME:\]KE"),
        ({"environment": {"OPENAI_FRONTEND_METRICS_CONFIG": "m,a=b"}}, r"'m' must have the form"),
        (
            {"flags": {"triton_option": ["cuda-memory-pool-byte-size=0:x"]}},
            "cuda-memory-pool-byte-size: 'x' is not a whole number",
        ),
        (
            {"flags": {"triton_option": ["model-load-gpu-limit=0:2"]}},
            "--triton-option: model-load-gpu-limit: '2' must be from 0 to 1",
        ),
        (
            {"flags": {"triton_option": ["model-load-gpu-limit=2"]}},
            "model-load-gpu-limit: '2' must have the form DEVICE:NUMBER",
        ),
        (
            {"flags": {"triton_option": ["rate-limit-resource=r"]}},
            r"rate-limit-resource: 'r' must have the form NAME:COUNT\[:DEVICE\]",
        ),
        (
            {"environment": {"OPENAI_FRONTEND_TRITON_OPTION": "log-info=maybe"}},
            "OPENAI_FRONTEND_TRITON_OPTION: log-info: 'maybe' is not true or false",
        ),
        ({"flags": {"triton_option": ["rate-limit=on"]}}, "must be off or execution_count"),
        ({"flags": {"triton_option": ["log-verbose"]}}, "'log-verbose' must have the form NAME="),
        ({"flags": {"triton_option": ["cuda-memory-pool=1"]}}, "'cuda-memory-pool-byte-size'"),
        (
            {"flags": {"triton_option": ["log-wraning=1"]}},
            "unknown option 'log-wraning'; did you mean 'log-warning' or 'log-info'",
        ),
        ({"flags": {"triton_option": ["x=1"]}}, "unknown option 'x'; docs/settings.md lists"),
        ({"flags": {"model_repository": []}}, "--model-repository: must have 1 or more"),
        ({"flags": {"chat_template": ["=x"]}}, r"'=x' must have the form \[MODEL=\]NAME_OR_PATH"),
        ({"flags": {"chat_template": 5}}, "--chat-template: must be a mapping"),
        ({"flags": {"tool_call_parser": ["a="]}}, r"'a=' must have the form \[MODEL=\]PARSER"),
        ({"flags": {"repository_poll_s": "nan"}}, "--repository-poll-s: must be a finite"),
    ],
)
def test_error_names_the_source_of_an_invalid_value(sources: dict[str, Any], message: str) -> None:
    """The message names the flag or variable."""

    with pytest.raises(InvalidSettings, match=message):
        load(**sources)


PARSERS = ("hermes", "qwen3", "qwen3_xml", "none")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "m=hermess",
            r"^--tool-call-parser\[m\]: unknown parser 'hermess'; did you mean 'hermes'[?]",
        ),
        ("qwen", r"^--tool-call-parser\[\*\]: .*did you mean 'qwen3' or 'qwen3_xml'[?]"),
        ("zzz", "unknown parser 'zzz'; use a family of docs/tools.md, none, vllm:NAME or"),
    ],
)
def test_unknown_parser_suggests_similar_names(value: str, message: str) -> None:
    """The caller passes the known names."""

    with pytest.raises(InvalidSettings, match=message):
        load(flags={"tool_call_parser": [value]}, parsers=PARSERS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "config.yaml: unknown setting 'prot'; did you mean 'port'[?]"),
        ("1: 1", "config.yaml: unknown setting '1'"),
        ("port: x", "config.yaml: port: must be a whole number"),
        ("triton_option: {log-verbose: {a: 1}}", "triton_option: log-verbose: must be one number"),
        (
            "triton_option: {log-verbose: [1, 2]}",
            "config.yaml: triton_option: log-verbose: must be one number, text",
        ),
        (
            "triton_log_verbose: 1",
            "config.yaml: setting 'triton_log_verbose' was removed: set triton_option to "
            "log-verbose=VALUE instead",
        ),
        ("max_prompts: 1", "setting 'max_prompts' was removed: its value is always 2048"),
        ("public_docs: true", "setting 'public_docs' was removed: set web_pages to public instead"),
        (
            "cuda_memory_pool_bytes: {0: 64}",
            "removed: set triton_option to cuda-memory-pool-byte-size=VALUE instead",
        ),
        ("backend_config: {vllm: [3]}", r"config.yaml: backend_config\[vllm\]: "),
        ("port: [", "config.yaml: while parsing"),
        ("port: 2026-13-45", "config.yaml: month must be in 1..12"),
        ("model_option: 1", "config.yaml: model_option: must be a list"),
        ("model_option: [1]", "config.yaml: model_option: '1' must have the form"),
        ("- a", "config.yaml: must contain settings as 'name: value' lines"),
    ],
)
def test_error_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    """The message is one line with file, key and reason."""

    with pytest.raises(InvalidSettings, match=message) as refused:
        load(config=yaml_file(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_variable_of_a_removed_setting_is_rejected() -> None:
    """The server would start without what it sets. An empty one sets nothing."""

    with pytest.raises(InvalidSettings, match=r"_SERVER_ID: .* set triton_option to id=VALUE"):
        load(environment={"OPENAI_FRONTEND_SERVER_ID": "a"})
    assert load(environment={"OPENAI_FRONTEND_SERVER_ID": ""}) == Settings()


def test_last_value_of_an_option_of_the_core_wins() -> None:
    """As with tritonserver; options that repeat keep all values."""

    settings = load(flags={"triton_option": ["log-verbose=1", "log-verbose=2"]})
    assert settings.triton_option == {"log-verbose": ["2"]}


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"nowhere\.yaml: No such file or directory"):
        load(config=tmp_path / "nowhere.yaml")


def test_unknown_variable_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The warning suggests a name; variables without our prefix are ignored."""

    load(environment={"OPENAI_FRONTEND_PROT": "1", "OPENAI_API_KEY": "x"})
    assert caplog.messages == [
        "environment variable OPENAI_FRONTEND_PROT is not a setting; "
        "did you mean 'OPENAI_FRONTEND_PORT'?"
    ]


VALID: dict[str, list[str]] = {
    "cors_origins": ["https://a.example", "http://localhost:3000", "*"],
    "allowed_media_domains": ["a.example", "*.a.example", "a-b.c_d.example", "xn--a.b.xn--c"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, each) for name in VALID for each in VALID[name]]
)
def test_valid_origins_and_domains(name: str, value: str) -> None:
    """Scheme, host, and a port if it is not the default; a complete name, or its subdomains."""

    assert getattr(load(flags={name: [value]}), name) == [value]


# Origins that browsers never send; addresses, names without a domain, every name, and URLs; not a
# path, or one that starts like the API's own; what no response header may have
INVALID: dict[tuple[str, str], list[str]] = {
    ("cors_origins", r"cors.origins: '.*' must have the form https://HOST"): [
        "https://a.example/", "a.example", "https://A.example", "null",
    ],
    ("allowed_media_domains", r"allowed.media.domains: '.*' must have the form"): [
        "*", "*.example", "*example.com", "a.*.example", "example", "localhost", "127.0.0.1",
        "0x7f.0x1", "[::1]", "https://a.example", "a.example:443", "a.example/", "a.example.",
        "A.example", ".a.example", "b\u00fccher.example",
    ],
    ("root_path", r"must have the form|must not start like a path of the API"): [
        "llm", "/a b", "/a//b", "/../a", "/a?b", "/v1", "/docs/x",
    ],
    ("replica_name", "must have 1 to 128 letters"): ["", "a b", "a\r\nb", "\u00e9", "x" * 129],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message", "value"),
    [(*key, value) for key, values in INVALID.items() for value in values],
)
def test_invalid_texts(name: str, message: str, value: str) -> None:
    """The setting would have no effect, or another one than it says."""

    lists = ("cors_origins", "allowed_media_domains")
    with pytest.raises(InvalidSettings, match=message):
        load(flags={name: [value] if name in lists else value})


@pytest.mark.parametrize(
    ("given", "expected"), [("/llm", "/llm"), ("/a/b-c.d/", "/a/b-c.d"), ("/", ""), ("", "")]
)
def test_root_path(given: str, expected: str) -> None:
    """Trailing slashes are stripped."""
    assert Settings(root_path=given).root_path == expected


def test_empty_file_and_variable_set_nothing(tmp_path: Path) -> None:
    """A value of the file stays in force."""

    assert load(config=yaml_file(tmp_path, "")) == Settings()
    config = yaml_file(tmp_path, "port: 8000")
    assert load(environment={"OPENAI_FRONTEND_PORT": ""}, config=config).port == 8000


@pytest.mark.parametrize("value", ["hermes", "none", "vllm:nobody_knows", "pkg.mod:Class"])
def test_valid_parser_names(value: str) -> None:
    """A name with a colon is resolved when the model loads."""

    assert load(flags={"tool_call_parser": [value]}, parsers=PARSERS).tool_call_parser == {
        "*": value
    }


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize("name", ["MODEL_REPOSITORY", "LOAD_MODEL", "KEYS_FILE", "PORT"])
def test_empty_variable_is_ignored(name: str, text: str) -> None:
    """Compose's `${VAR:-}` creates empty variables."""

    assert load(environment={f"OPENAI_FRONTEND_{name}": text}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("load_model", "a, b ,", ["a", "b"]),
        ("model_repository", " a , b", [Path("a"), Path("b")]),
        ("backend_config", "vllm:a=1, vllm:b=2", {"vllm": {"a": "1", "b": "2"}}),
        ("tool_call_parser", "hermes, a=none", {"*": "hermes", "a": "none"}),
        ("triton_option", "log-info=1, id=a", {"log-info": ["1"], "id": ["a"]}),
    ],
)
def test_spaces_around_commas_are_ignored(name: str, text: str, value: object) -> None:
    """A trailing comma is ignored too."""

    assert getattr(load(environment={f"OPENAI_FRONTEND_{name.upper()}": text}), name) == value


@pytest.mark.parametrize("name", ["load_model", "model_repository", "api_key", "engine_arg"])
def test_empty_flag_of_a_list_is_rejected(name: str) -> None:
    """A shell passes it for an unset variable."""

    with pytest.raises(InvalidSettings, match=r": must not contain an empty value"):
        load(flags={name: [""]})


def test_only_the_digest_of_an_api_key_is_kept() -> None:
    """For every source; the settings' repr does not contain the key."""

    settings = load(environment={"OPENAI_FRONTEND_API_KEY": f"{SECRET}, sk-b"})

    assert [key.sha256 for key in settings.api_key] == [
        hashlib.sha256(key.encode()).hexdigest() for key in (SECRET, "sk-b")
    ]
    assert settings == load(flags={"api_key": [SECRET, "sk-b"]})
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "value",
    [[f"{SECRET} b"], [f"{SECRET}\u00e9"], {SECRET: 1}, [[SECRET]], 5, [f"{SECRET}\n{SECRET}"]],
)
def test_errors_do_not_quote_an_api_key(value: object) -> None:
    with pytest.raises(InvalidSettings, match=r"^--api-key: ") as refused:
        load(flags={"api_key": value})
    assert SECRET not in str(refused.value)
    assert "got" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 1024),
        ({"behind_router": True}, 256),
        ({"behind_router": True, "max_concurrent_requests": 8}, 2),
        ({"behind_router": True, "max_queue_size": 1024}, 1024),
        ({"max_concurrent_requests": 8}, 1024),
    ],
)
def test_queue_is_short_behind_a_router(given: dict[str, Any], size: int) -> None:
    """Unless the operator sets it: the router sends rejected requests elsewhere."""
    assert Settings(**given).queue_size() == size
