"""`openai-frontend keys`, and a server that reloads the keys file."""

import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from openai_frontend.auth import keys_file
from openai_frontend.auth.api_keys import digest_of
from openai_frontend.auth.rate_limit import KeyLimits
from openai_frontend.cli import main
from tests.api.routers.mock_gateway import exchange, mock_gateway
from tests.fast.auth.key_files import bearer, key, write
from tests.gateway_process import GatewayProcess


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def add(path: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The printed key."""
    assert main(["keys", "add", *options, f"--keys-file={path}"]) == 0
    return capsys.readouterr().out.strip()


def test_key_is_printed_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file contains only its digest, readable by the owner; default scopes apply."""

    secret = add(path, "alice", capsys=capsys)
    [kept] = keys_file.read(path)
    assert (kept.name, kept.digest) == ("alice", digest_of(secret.encode()))
    assert kept.scopes == frozenset({"inference", "models"})
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_list_in_a_pipe_has_no_control_sequences(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    """Whatever the environment claims about terminals, and without wrapped lines."""
    monkeypatch.setenv(variable, "1")
    add(path, "a" * 60, "--model=" + "m" * 60, capsys=capsys)
    assert main(["keys", "list", f"--keys-file={path}"]) == 0
    listed = capsys.readouterr().out
    assert "\x1b" not in listed
    assert "a" * 60 in listed.splitlines()[1]
    assert "m" * 60 in listed.splitlines()[1]


def test_all_options_of_a_key(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option is stored in the file."""

    options = (
        "--scope=admin --scope=metrics --model=a --model=org/* --requests-per-minute=1 "
        "--tokens-per-minute=2 --max-concurrent-requests=3 --priority=-4 "
        "--isolate-prefix-cache --expires-in-days=5"
    )
    add(path, "bob", *options.split(), capsys=capsys)
    [kept] = keys_file.read(path)
    assert (kept.scopes, kept.models) == (frozenset({"admin", "metrics"}), ["a", "org/*"])
    assert kept.limits == KeyLimits(
        requests_per_minute=1, tokens_per_minute=2, max_concurrent_requests=3
    )
    assert (kept.priority, kept.isolate_prefix_cache) == (-4, True)
    assert kept.created is not None
    assert kept.expires is not None
    assert (kept.expires - kept.created).days == 5


def test_list_of_keys(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, first digits of digests, scopes and limits; the environment sets the file."""

    monkeypatch.setenv("OPENAI_FRONTEND_KEYS_FILE", str(path))
    write(path, key("a", models=["m"], max_concurrent_requests=2), key("b"))
    assert main(["keys", "list"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "digest", "scopes", "models", "limits", "expires"]
    digest = key("a").digest[:8]
    scopes = "inference,messages,responses,models,metrics,admin,transfer"
    assert first.split() == ["a", digest, scopes, "m", "2", "concurrent", "never"]
    assert second.split()[3:] == ["all", "none", "never"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["revoke", "b"], "has no key 'b'"),
        (["add", "a"], "already has a key 'a'"),
        (["add", "a b"], "use up to 64 letters"),
        (["add", "../x"], "use up to 64 letters"),
        (
            ["add", "c", "--expires-in-days=99999999999"],
            "--expires-in-days: 99999999999 days is too far",
        ),
        (["add", "c", "--priority=2147483648"], "keys[1].priority: must be below"),
        (
            ["add", "c", "--max-concurrent-requests=9007199254740993"],
            "keys[1].max_concurrent_requests: must be at most",
        ),
        (["add", "c", "--model="], "keys[1].models[0]: must have 1 or more"),
        (["list", "--keys-file=nowhere.yaml"], "nowhere.yaml: No such file or directory"),
        (["add", "c", "--keys-file=/proc/keys.yaml"], "/proc/keys.yaml: "),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2, and the file is unchanged."""

    write(path, key("a"))
    before = path.read_bytes()
    code, said = main(["keys", f"{arguments[0]}", *arguments[1:], *_file(arguments, path)]), ""
    said = capsys.readouterr().err
    assert (code, said.count("\n"), path.read_bytes()) == (2, 1, before)
    assert message in said


def _file(arguments: list[str], path: Path) -> list[str]:
    named = any(each.startswith("--keys-file") for each in arguments)
    return [] if named else [f"--keys-file={path}"]


def test_missing_keys_file_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no default file."""

    monkeypatch.delenv("OPENAI_FRONTEND_KEYS_FILE", raising=False)
    assert main(["keys", "list"]) == 2
    assert "no keys file" in capsys.readouterr().err


def test_server_does_not_start_with_an_invalid_keys_file(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server would be open, or closed, to everybody."""

    path.write_text("keys: {}")
    code = main(["serve", f"--model-repository={path.parent}", f"--keys-file={path}"])
    assert (code, capsys.readouterr().err) == (
        2,
        f"openai-frontend: keys_file: {path}: keys: must be a list\n",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jwks=x"], "jwks: jwt_issuer and jwt_audience must be set with it"),
        (
            ["--jwks=http://issuer.test/k", "--jwt-issuer=i", "--jwt-audience=a"],
            "jwks: 'http://issuer.test/k' is neither a file nor an https URL",
        ),
    ],
)
def test_incomplete_jwt_settings(
    options: list[str], message: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server does not start if it would accept anybody's tokens."""

    code = main(["serve", f"--model-repository={path.parent}", *options])
    assert (code, capsys.readouterr().err) == (2, f"openai-frontend: {message}\n")


def test_jwt_settings_without_the_extra(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says what to install."""

    monkeypatch.setitem(sys.modules, "openai_frontend.auth.jwt_verifier", None)
    options = ["--jwks=x", "--jwt-issuer=i", "--jwt-audience=a"]
    assert main(["serve", f"--model-repository={path.parent}", *options]) == 2
    assert "PyJWT is not installed; install openai-frontend[jwt]" in capsys.readouterr().err


CANARY = "sk-canary-3fb1c9"


@dataclass
class Guarded:
    """A server with keys, and their file."""

    process: GatewayProcess
    keys: Path

    def models(self, secret: str) -> int:
        headers = bearer(secret)
        return httpx.get(f"{self.process.url}/v1/models", headers=headers).status_code

    def client(self, secret: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.process.url}/v1", api_key=secret, max_retries=0)

    def wait_for(self, secret: str, status: int) -> float:
        """Returns the seconds until the key gets that status."""
        began = time.monotonic()
        while self.models(secret) != status:
            assert time.monotonic() - began < 60
            time.sleep(0.02)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = write(
        folder / "keys.yaml", key("canary", secret=CANARY), key("few", tokens_per_minute=100)
    )
    options = [f"--keys-file={keys}", "--access-log", "--log-level=debug"]
    with mock_gateway(folder, *options) as process:
        yield Guarded(process, keys)


def chat(client: openai.OpenAI, **options: object) -> list[str | None]:
    stream = client.chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        **options,  # type: ignore[call-overload]
    )
    return [chunk.choices[0].delta.content for chunk in stream if chunk.choices]


@pytest.mark.slow
def test_client_beyond_its_rate_limit(guarded: Guarded) -> None:
    """Unused reserved tokens are returned with the response."""

    client = guarded.client("few")
    answer = client.chat.completions.with_raw_response.create(
        model="mock", messages=[{"role": "user", "content": "hi"}], max_tokens=60
    )
    remaining = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert remaining > 100 - 60
    with pytest.raises(openai.RateLimitError) as refused:
        chat(client, max_tokens=100)
    assert (refused.value.type, refused.value.code) == ("tokens", "rate_limit_exceeded")
    assert int(refused.value.response.headers["retry-after-ms"]) > 0
    assert chat(client, max_tokens=4)


@pytest.mark.parametrize("line", ["OPTIONS *", "POST /metrics"])
@pytest.mark.parametrize("host", ["", "/health/live"])
@pytest.mark.slow
def test_unusual_requests_need_a_key(guarded: Guarded, line: str, host: str) -> None:
    """Beside those of tests/security/test_access_bypass.py."""

    sent = f"{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    answer = exchange(guarded.process.port, sent.encode())
    assert answer.status in (400, 401)


@pytest.mark.slow
def test_running_server_picks_up_changes(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    """Added and revoked keys apply within three seconds, unless others hold the CPU: of a few
    changes the quickest counts.
    """

    added_s, revoked_s = [], []
    for number in range(4):
        secret = add(guarded.keys, f"new{number}", capsys=capsys)
        added_s.append(guarded.wait_for(secret, 200))
        assert main(["keys", "revoke", f"new{number}", f"--keys-file={guarded.keys}"]) == 0
        revoked_s.append(guarded.wait_for(secret, 401))
        if max(min(added_s), min(revoked_s)) < 3:
            break
    assert max(min(added_s), min(revoked_s)) < 3
    assert guarded.models(CANARY) == 200


@pytest.mark.slow
def test_invalid_file_keeps_the_old_keys(guarded: Guarded) -> None:
    """One log line has the reason."""

    before = guarded.keys.read_bytes()
    guarded.keys.write_text(f"keys: [{{sha256: {CANARY}")
    try:
        guarded.process.wait_for_line("stay in force")
    finally:
        guarded.keys.write_bytes(before)

    assert guarded.process.output().count("stay in force") == 1
    assert guarded.models(CANARY) == 200


@pytest.mark.slow
def test_log_contains_no_key(guarded: Guarded) -> None:
    """Not even at level debug with an access log."""

    guarded.models(CANARY)
    guarded.models(CANARY + "x")
    httpx.get(f"{guarded.process.url}/v1/models", headers={"authorization": CANARY})
    guarded.process.wait_for_line("GET /v1/models")

    log = guarded.process.output()
    assert "GET /v1/models" in log
    assert CANARY not in log
