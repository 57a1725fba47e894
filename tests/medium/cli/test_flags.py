"""Flags of other servers in the command line of `serve`, without vLLM's own parser."""

import argparse
import re
from collections.abc import Mapping
from typing import Any

import pytest

from openai_frontend.cli import main
from openai_frontend.cli.flags import engine, llama_cpp, tritonserver, vllm
from openai_frontend.cli.flags.command_line import CommandLine, rewrite
from openai_frontend.cli.flags.rules import Reading
from openai_frontend.cli.flags.similar import similar
from openai_frontend.cli.parser import parser
from openai_frontend.config.loader import load, options

FLAGS = {option.flag for option in options()}


def own() -> Mapping[str, argparse.Action]:
    [commands] = [each for each in parser()._actions if each.dest == "command" and each.choices]
    actions: Mapping[str, argparse.Action] = commands.choices["serve"]._option_string_actions  # type: ignore[index]
    return actions


OWN = own()


def read(text: str) -> CommandLine:
    return rewrite(text.split(), OWN)


def core(*options: str) -> tuple[str, ...]:
    return tuple(word for option in options for word in ("--triton-option", option))


# tritonserver's flag with a value -> our options, or part of the reason why it is refused
TRITONSERVER: Mapping[str, str | tuple[str, ...]] = {
    "--model-store /m": ("--model-repository", "/m"),
    "--model-repository=/m": ("--model-repository", "/m"),
    "--exit-on-error=false": core("exit-on-error=false"),
    "--exit-on-error=true": core("exit-on-error=true"),
    "--disable-auto-complete-config": core("strict-model-config=true"),
    "--strict-model-config=false": core("strict-model-config=false"),
    "--no-strict-model-config": core("strict-model-config=false"),
    "--strict-readiness=true": ("--strict-readiness",),
    "--strict-readiness false": ("--no-strict-readiness",),
    "--strict-readiness=maybe": "'maybe' is not true or false",
    "--model-control-mode=explicit": ("--model-control-mode", "explicit"),
    "--repository-poll-secs=5": ("--repository-poll-s", "5"),
    "--load-model=*": ("--load-model", "*"),
    "--model-load-thread-count=2": core("model-load-thread-count=2"),
    "--model-load-retry-count=2": core("model-load-retry-count=2"),
    "--model-load-gpu-limit 0:0.5": core("model-load-gpu-limit=0:0.5"),
    "--model-namespacing=true": core("model-namespacing=true"),
    "--model-config-name c": core("model-config-name=c"),
    "--enable-peer-access=off": core("enable-peer-access=off"),
    "--exit-timeout-secs 3": ("--exit-timeout-s", "3"),
    "--id=me": core("id=me"),
    "--min-supported-compute-capability=7.5": core("min-supported-compute-capability=7.5"),
    "--buffer-manager-thread-count=2": core("buffer-manager-thread-count=2"),
    "--pinned-memory-pool-byte-size=9": core("pinned-memory-pool-byte-size=9"),
    "--cuda-memory-pool-byte-size=0:9": core("cuda-memory-pool-byte-size=0:9"),
    "--cuda-virtual-address-size=0:9": core("cuda-virtual-address-size=0:9"),
    "--response-cache-byte-size=9": ("--cache-config", "local:size=9"),
    "--cache-config=local,size=9": ("--cache-config", "local:size=9"),
    "--cache-config local:size=9": ("--cache-config", "local:size=9"),
    "--cache-directory=/c": core("cache-directory=/c"),
    "--backend-directory=/b": ("--backend-directory", "/b"),
    "--backend-config=python,shm-default-byte-size=9": (
        "--backend-config", "python:shm-default-byte-size=9"
    ),
    "--backend-config=default-max-batch-size=4": ("--backend-config", "default-max-batch-size=4"),
    "--backend-config=python,a=b,c=d": ("--backend-config", "python:a=b,c=d"),
    "--repoagent-directory=/r": core("repoagent-directory=/r"),
    "--host-policy=numa0,cpu-cores=0-3": core("host-policy=numa0,cpu-cores=0-3"),
    "--rate-limit=execution_count": core("rate-limit=execution_count"),
    "--rate-limit-resource=r:4:0": core("rate-limit-resource=r:4:0"),
    "--allow-metrics=false": ("--no-metrics",),
    "--allow-gpu-metrics=true": core("allow-gpu-metrics=true"),
    "--allow-cpu-metrics=0": core("allow-cpu-metrics=0"),
    "--metrics-address=0.0.0.0": core("metrics-address=0.0.0.0"),
    "--metrics-port=8002": ("--metrics-port", "8002"),
    "--metrics-interval-ms=0": "'0' must be from 1",
    "--metrics-interval-ms=5": core("metrics-interval-ms=5"),
    "--metrics-config summary_latencies=true": ("--metrics-config", "summary_latencies=true"),
    "--metrics-config=m,k=v": ("--metrics-config", "m:k=v"),
    "--log-verbose=1": core("log-verbose=1"),
    "--log-verbose=true": core("log-verbose=true"),
    "--log-verbose=maybe": "'maybe' is neither a level nor true or false",
    "--log-info=true": core("log-info=true"),
    "--log-warning=false": core("log-warning=false"),
    "--log-error=1": core("log-error=1"),
    "--log-file=/f": core("log-file=/f"),
    "--log-format=ISO8601": core("log-format=ISO8601"),
    "--log-format=json": ("--log-format", "json"),
    "--allow-http=true": (),
    "--allow-http=false": "HTTP serves health",
    "--http-port=8000": ("--port", "8000"),
    "--http-address=::1": ("--host", "::1"),
    "--http-max-input-size=9": ("--max-body-bytes", "9"),
    "--http-thread-count=9": (),
    "--reuse-http-port=false": core("reuse-http-port=false"),
    "--reuse-http-port=true": core("reuse-http-port=true"),
    "--http-header-forward-pattern=x-.*": core("http-header-forward-pattern=x-.*"),
    "--http-header-forward-pattern=(": "is not a regular expression",
    "--http-restricted-api=health,trace:k=v=w": core("http-restricted-api=health,trace:k=v=w"),
    "--http-restricted-api=helth:k=v": "unknown group 'helth'; the groups are health, metadata",
    "--http-restricted-api=health,health:k=v": "group 'health' is restricted twice",
    "--http-restricted-api=health:k": "must have the form GROUP[,GROUP]:HEADER=VALUE",
    "--http-restricted-api=health:k@=v": "HEADER is not a name of a header",
    "--openai-restricted-api inference,metrics k -v": core(
        "openai-restricted-api=inference,metrics:k=-v"
    ),
    "--openai-restricted-api": "expected three arguments",
    "--openai-restricted-api inference k": "must have the form",
    "--openai-restricted-api trace k v": "the groups are inference, model-repository, metrics",
    "--allow-client-shm=true": core("allow-client-shm=true"),
    "--allow-grpc=false": (),
    "--allow-grpc=true": ("--triton-option", "grpc-port=8001"),
    "--grpc-use-ssl": core("grpc-use-ssl=true"),
    "--grpc-server-cert=c.pem": core("grpc-server-cert=c.pem"),
    "--grpc-port=8001": ("--triton-option", "grpc-port=8001"),
    "--grpc-port=80010": "'80010' must be from 0 to 65535",
    "--grpc-keepalive-time=1000": ("--triton-option", "grpc-keepalive-time=1000"),
    "--grpc-keepalive-permit-without-calls=1": (
        "--triton-option", "grpc-keepalive-permit-without-calls=1",
    ),
    "--grpc-infer-response-compression-level=low": (
        "--triton-option", "grpc-infer-response-compression-level=low",
    ),
    "--grpc-max-connection-age=0": ("--triton-option", "grpc-max-connection-age=0"),
    "--grpc-restricted-protocol=health:k=v": core("grpc-restricted-protocol=health:k=v"),
    "--grpc-restricted-protocol=health:k!=v": "HEADER is not a name of a header",
    "--grpc-address=::1": core("grpc-address=::1"),
    "--grpc-infer-thread-count=4": (),
    "--grpc-infer-allocation-pool-size=4": (),
    "--grpc-max-response-pool-size=4": (),
    "--grpc-use-ssl-mutual=true": core("grpc-use-ssl-mutual=true"),
    "--grpc-server-key=k.pem": core("grpc-server-key=k.pem"),
    "--grpc-root-cert=r.pem": core("grpc-root-cert=r.pem"),
    "--grpc-keepalive-timeout=1": core("grpc-keepalive-timeout=1"),
    "--grpc-http2-max-pings-without-data=1": core("grpc-http2-max-pings-without-data=1"),
    "--grpc-http2-min-recv-ping-interval-without-data=1": core(
        "grpc-http2-min-recv-ping-interval-without-data=1"
    ),
    "--grpc-http2-max-ping-strikes=1": core("grpc-http2-max-ping-strikes=1"),
    "--grpc-max-connection-age-grace=1": core("grpc-max-connection-age-grace=1"),
    "--grpc-header-forward-pattern=x-.*": core("grpc-header-forward-pattern=x-.*"),
    "--reuse-grpc-port=true": core("reuse-grpc-port=true"),
    "--trace-config rate=4": ("--trace-sample-ratio", "0.25", *core("trace-rate=4")),
    "--trace-config rate=x": "'x' is not a whole number",
    "--trace-config mode=OpenTelemetry": core("trace-mode=opentelemetry"),
    "--trace-config mode=triton": core("trace-mode=triton"),
    "--trace-config triton,file=/t": core("trace-file=/t"),
    "--trace-config triton,log-frequency=9": core("trace-log-frequency=9"),
    "--trace-config count=5": core("trace-count=5"),
    "--trace-config=opentelemetry,url=http://c:4318/v1/traces": (
        "--otlp-endpoint", "http://c:4318"
    ),
    "--trace-config opentelemetry,resource=a=b": "--otlp-endpoint",
    "--trace-config level=TIMESTAMPS": core("trace-level=TIMESTAMPS"),
    "--trace-config level=tensors": core("trace-level=tensors"),
    "--trace-config count=-1": core("trace-count=-1"),
    "--trace-rate=1000": ("--trace-sample-ratio", "0.001", *core("trace-rate=1000")),
    "--trace-level=OFF": core("trace-level=OFF"),
    "--trace-level=ALL": "'ALL' must be OFF, TIMESTAMPS or TENSORS",
    "--trace-file=x": core("trace-file=x"),
    "--trace-count=5": core("trace-count=5"),
    "--trace-count=-1": core("trace-count=-1"),
    "--trace-count=-2": "'-2' must be from -1",
    "--trace-log-frequency=0": core("trace-log-frequency=0"),
    "--allow-sagemaker=true": ("--port", "8080"),
    "--allow-sagemaker=false": (),
    "--sagemaker-port=9": ("--port", "9"),
    "--sagemaker-safe-port-range=1-2": (),
    "--sagemaker-thread-count=4": (),
    "--allow-vertex-ai=false": (),
    "--allow-vertex-ai": ("--port", "8080"),
    "--vertex-ai-port=9": ("--port", "9"),
    "--vertex-ai-thread-count=4": (),
    "--vertex-ai-default-model=m": core("vertex-ai-default-model=m"),
    "--triton-ports": (
        "--port", "8000", "--triton-option", "grpc-port=8001", "--metrics-port", "8002",
    ),
}  # fmt: skip


def test_every_flag_of_tritonserver_is_read_or_refused_with_a_reason() -> None:
    """Also `=true`, `=false` and NAME,KEY=VALUE."""

    for text, expected in TRITONSERVER.items():
        line = read(text)
        if isinstance(expected, str):
            assert expected in "".join(line.problems), text
        else:
            assert (line.problems, line.words) == ([], list(expected)), text


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("--http-port=1 --triton-ports", ("--port", "1")),
        ("--sagemaker-port=1 --allow-sagemaker=true", ("--port", "1")),
        ("--grpc-port=1 --allow-grpc=true", core("grpc-port=1")),
    ],
)
def test_named_port_wins_over_a_default(words: str, last: tuple[str, ...]) -> None:
    """Wherever it stands: of two values, the last one is used."""
    line = read(words)

    assert line.problems == []
    assert tuple(line.words[-2:]) == last


REMOVED = {
    "--triton-log-verbose 1": "use --triton-option log-verbose=1",
    "--no-triton-log-warn": "use --triton-option log-warning=false",
    "--server-id=me": "use --triton-option id=me",
    "--gpu-metrics": "use --triton-option allow-gpu-metrics=true",
    "--pinned-memory-pool-bytes=9": "use --triton-option pinned-memory-pool-byte-size=9",
}


@pytest.mark.parametrize(("text", "advice"), REMOVED.items())
def test_removed_flag_of_the_core_is_refused_with_its_option(text: str, advice: str) -> None:
    assert read(text).problems == [f"unknown option {re.split('[ =]', text)[0]}; {advice}"]


# vLLM's
FRONTEND: Mapping[str, str | tuple[str, ...]] = {
    "--served-model-name a b": ("org/m", "--served-model-name", "a", "--served-model-name", "b"),
    "--ssl-keyfile k --ssl-certfile=c": ("org/m", "--tls-key", "k", "--tls-certificate", "c"),
    "--uds /s": ("org/m", "--unix-socket", "/s"),
    '--allowed-origins ["https://a","https://b"]': (
        "org/m", "--cors-origins", "https://a", "--cors-origins", "https://b"
    ),
    '--allowed-methods ["*"]': ("org/m",),
    '--allowed-methods ["GET"]': "every method",
    "--enable-auto-tool-choice": ("org/m",),
    "--enable_auto_tool_choice": ("org/m",),
    "--enable-log-requests": ("org/m", "--access-log"),
    "--no-enable-log-requests": ("org/m", "--no-access-log"),
    "--no-enable-log-outputs": ("org/m",),
    "--enable-log-outputs": "outputs are never logged",
    "--enable-force-include-usage": ("org/m", "--force-include-usage"),
    "--max-log-len 5": ("org/m",),
    "--uvicorn-log-level critical": ("org/m", "--log-level", "error"),
    "--log-level INFO": ("org/m", "--log-level", "info"),
    "--lora-modules a=/x b=/y": (
        "org/m", "--engine-arg", "enable_lora=true", "--model-option", "*:adapters=a=/x,b=/y"
    ),
    '--lora-modules {"name":"a"}': "NAME=FOLDER",
    "--model x": "MODEL is named already",
    "--task embed": "--runner pooling",
    "--headless": "docs/scale.md",
    "--api-server-count 1": ("org/m",),
    "--api-server-count 2": "docs/scale.md",
    "--allowed-local-media-path /x": "files of the server are never read",
    "--default-chat-template-kwargs {}": "chat_template_kwargs in requests",
    '--reasoning-effort-map {"high":"max","minimal":{"reasoning_effort":"none"}}': (
        "org/m", "--model-option", "*:reasoning_effort_map=high=max,minimal=none"
    ),
    "--reasoning-effort-map {}": ("org/m",),
    "--reasoning-effort-map high=max": "'high=max' is not a JSON object",
    '--reasoning-effort-map {"high":{"enable_thinking":true}}': "only become another effort",
    "--middleware a.B": "proxy",
    "--otlp-traces-endpoint x": "--otlp-endpoint",
    "--model_repository /m": ("org/m", "--model-repository", "/m"),
}  # fmt: skip


def test_flags_of_vllms_http_server_are_read_or_refused_with_a_reason() -> None:
    """With dashes or underscores."""

    for text, expected in FRONTEND.items():
        line = read(f"org/m {text}")
        if isinstance(expected, str):
            assert expected in "".join(line.problems), text
        else:
            assert (line.problems, line.words) == ([], list(expected)), text


def test_flag_without_effect_is_noted() -> None:
    """Nothing is dropped silently."""

    assert read("org/m --enable-auto-tool-choice").notes == [
        "--enable-auto-tool-choice has no effect: tool calls work if the template has them"
    ]


LLAMA_CPP = {
    "-c 4096": "use --engine-arg max_model_len=4096",
    "--alias x": "use --served-model-name x",
    "--embedding": "use --engine-arg runner=pooling",
    "-v": "use --log-level debug",
    "--hf-repo x": "pass MODEL without a flag",
    "-n 5": "--nnodes (vLLM)",
}


def test_flags_of_llama_cpp_are_refused_with_what_to_use() -> None:
    """The values are filled in."""

    for text, expected in LLAMA_CPP.items():
        assert expected in "".join(read(f"org/m {text}").problems), text
    assert read("org/m -ngl 99").words == ["org/m"]


def test_all_problems_are_reported_with_the_command_line_to_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Accepted flags stay, replaced ones have our names, and secrets are not shown."""

    words = "org/m --http-port 8 --alias x --trace-level=ALL --frobnicate 3 --api-key=sk-canary"
    with pytest.raises(SystemExit) as ended:
        main(["serve", *words.split(), "--max-model-len", "9"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "openai-frontend serve: 3 options are refused (see openai-frontend serve --help):",
        "  unknown option --alias; use --served-model-name x",
        "  --trace-level: 'ALL' must be OFF, TIMESTAMPS or TENSORS",
        "  unknown option --frobnicate",
        "Use: openai-frontend serve org/m --port 8 --served-model-name x --api-key ..."
        " --max-model-len 9",
    ]


@pytest.mark.parametrize("words", ["org/m --api-key a sk-canary --foo", "--api-key=a sk-canary -x"])
def test_second_value_after_an_api_key_is_not_shown(words: str) -> None:
    """It may be another key: vLLM's flag takes several."""

    assert "canary" not in read(words).report("p")


@pytest.mark.parametrize("words", ["--max-model-len 9", "--model-repository m --max-model-len 9"])
def test_engine_flags_of_a_repository_name_the_file(words: str) -> None:
    """Only one model has engine flags."""

    assert read(words).problems == [
        "--max-model-len: only 'serve MODEL' takes engine flags; for a model of a repository, set"
        " max_model_len in its folder, in 1/model.json"
    ]


@pytest.mark.parametrize(
    "text",
    ["--port", "--http-port", "--max-model-len", "--compilation-config.mode", "--port --host x"],
)
def test_missing_value(text: str) -> None:
    """Every option reports it in the same way."""

    assert f"{text.split()[0]}: expected one argument" in read(f"org/m {text}").problems


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("--served-model-name a b org/m", ["org/m"]),
        ("org/m --served-model-name a b", ["org/m"]),
        ("--frobnicate org/m", ["org/m"]),
        ("--model org/m --served-model-name a", ["org/m"]),
        ("--allow-grpc false org/m", ["org/m"]),
        ("--port 1 -- -odd", ["-odd"]),
    ],
)
def test_model_is_found_among_flags(words: str, model: list[str]) -> None:
    """Before, between and after them."""

    assert read(words).corrected[:1] == model


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--prot", "--port"),
        ("--prt", "--port"),
        ("--acess-log", "--access-log"),
        ("--max-body-byte", "--max-body-bytes"),
        ("--no-acess-log", "--no-access-log"),
        ("--task", None),
        ("--force-includ-usages", "--force-include-usage"),
        ("--enable-access-log", None),
        ("--not-access-log", None),
        ("--max-log-len", None),
        ("--help-me", None),
        ("--hots", "--host"),
        ("--ports", "--port"),
    ],
)
def test_hint_is_a_slip_of_the_keyboard(name: str, meant: str | None) -> None:
    """A name with another meaning gets none."""

    assert similar(name, OWN) == meant


def test_no_hint_has_the_opposite_meaning() -> None:
    """Each of our switches, written wrong, is never completed to its opposite."""

    for name in OWN:
        for wrong in (name[:-1], name + "s", name.replace("-no-", "-no", 1)):
            guess = similar(wrong, OWN)
            assert guess is None or guess.startswith("--no-") == wrong.startswith("--no-")


def test_no_flag_is_in_two_tables() -> None:
    """The order of the tables does not matter."""

    names = [*vllm.FLAGS, *tritonserver.FLAGS, *llama_cpp.FLAGS]
    assert len(names) == len(set(names))
    assert [name for name in llama_cpp.FLAGS if engine.takes(name) or name in OWN] == []


def test_rules_produce_only_our_own_options() -> None:
    """Those of llama.cpp too, as what to use."""

    for table in (vllm.FLAGS, tritonserver.FLAGS, llama_cpp.FLAGS):
        for name, rule in table.items():
            reading: Reading = rule.read(["true" if rule.takes == "switch" else "1"])
            produced = {word for word in reading.words if word.startswith("--")}
            assert produced - OWN.keys() == set(), name
            assert reading.problem or reading.words or reading.note or rule.takes, name


def test_translated_values_are_settings() -> None:
    """tritonserver's command line starts this server."""

    words = (
        "--model-repository=r --backend-config=python,shm-default-byte-size=9 --http-port=8 "
        "--cache-config=local,size=9 --log-verbose=1 --strict-readiness=false --exit-timeout-secs=3"
    )
    given: dict[str, Any] = vars(parser().parse_args(["serve", *words.split()]))
    settings = load(flags={name: given[name] for name in given if name in OPTION_NAMES})
    assert settings.backend_config == {"python": {"shm-default-byte-size": "9"}}
    assert (settings.port, settings.triton_option) == (8, {"log-verbose": ["1"]})
    assert (settings.strict_readiness, settings.exit_timeout_s) == (False, 3)


OPTION_NAMES = {option.name for option in options()}
