"""HTTPS, client certificates and Unix sockets, with the real command."""

import contextlib
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from openai_frontend.cli.command import main
from openai_frontend.server.certificates import Certificate, InvalidCertificate
from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.medium.cli.certificates import Authority, encrypted_key
from tests.printed_examples import curl_commands
from tests.process_state import log_restored

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """`serve` configures the log of its process, which is the test suite's process here."""
    with log_restored():
        yield


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    mock_models.write_with_tokenizer(tmp_path / "models", "m", tokens=["yes"], answer_tokens=64)
    return tmp_path / "models"


def trusting(authority: Authority, client: Path | None = None) -> ssl.SSLContext:
    """Return a client's context; `client` is the client certificate to present."""
    context = ssl.create_default_context(cafile=authority.file)
    if client is not None:
        context.load_cert_chain(client)
    return context


def wait_until_ready(gateway: GatewayProcess, url: str, context: ssl.SSLContext) -> None:
    """As GatewayProcess does it over HTTP."""
    gateway.url = url
    for _ in range(3000):
        try:
            told = "print(" in gateway.output()  # printed just after it is ready
            if told and httpx.get(f"{url}/health/ready", verify=context).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(gateway.output())


@pytest.mark.slow
def test_https_streams_and_serves_the_renewed_certificate(tmp_path, models, authority):
    """The port does not speak plain HTTP."""
    file = authority.certificate("server")
    options = (f"--tls-certificate={file}",)
    with GatewayProcess(models, tmp_path / "log", *options) as gateway:
        url, context = f"https://127.0.0.1:{gateway.port}", trusting(authority)
        wait_until_ready(gateway, url, context)

        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, verify=context)
        assert answer.text.count("yes") == 64
        assert answer.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{gateway.port}/health/live")
        assert f"Ready on {url}/v1" in gateway.output()
        before = shown(gateway.port, context)
        file.write_bytes(authority.certificate("renewed").read_bytes())
        for _ in range(600):
            if shown(gateway.port, context) != before:
                break
            time.sleep(0.1)
        assert shown(gateway.port, context) == "renewed"


def connected(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A client with a small receive buffer."""
    plain = socket.socket()
    plain.settimeout(60)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", port))
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def all_of(client: ssl.SSLSocket) -> bytes:
    """Read until the server closes the connection."""
    return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.slow
def test_connection_limits_apply_over_tls(tmp_path, models, authority):
    """A head must be valid HTTP and arrive in time, a client that reads nothing is disconnected,
    and browsers get the header that requires HTTPS.
    """
    mock_models.write_with_tokenizer(models, "long", tokens=["x" * 65536], answer_tokens=50)
    file = authority.certificate("server")
    # Time enough for the clients that are not late to send a head on a busy machine
    options = (f"--tls-certificate={file}", "--send-timeout-s=1", "--header-timeout-s=6")
    body = b'{"model": "long", "prompt": "hi", "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    with (
        GatewayProcess(models, tmp_path / "log", *options) as gateway,
        contextlib.ExitStack() as opened,
    ):
        url, context = f"https://127.0.0.1:{gateway.port}", trusting(authority)
        wait_until_ready(gateway, url, context)

        late = opened.enter_context(connected(gateway.port, context))
        late.sendall(head[:20])  # answered at the end: its time passes meanwhile
        with connected(gateway.port, context) as malformed:
            malformed.sendall(b"hello\r\n\r\n")
            assert all_of(malformed).startswith(b"HTTP/1.1 400 ")
        with connected(gateway.port, context) as reader:
            reader.sendall(head + body)
            for _ in range(600):
                metrics = httpx.get(f"{url}/metrics", verify=context)
                if "openai_frontend_slow_clients_disconnected_total 1" in metrics.text:
                    break
                time.sleep(0.1)
            assert "openai_frontend_slow_clients_disconnected_total 1" in metrics.text
        assert all_of(late).startswith(b"HTTP/1.1 408 ")

    assert metrics.headers["strict-transport-security"] == "max-age=31536000"
    assert "Traceback" not in gateway.output()


def shown(port: int, context: ssl.SSLContext) -> str:
    """Return the name in the server's certificate."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        return name_in(secure.getpeercert(binary_form=True))


def name_in(certificate: bytes | None) -> str:
    subject = x509.load_der_x509_certificate(certificate or b"").subject
    [name] = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


@pytest.mark.slow
def test_client_certificates(tmp_path, models, authority):
    """Only certificates signed by a configured authority are accepted."""
    server, client = authority.certificate("server"), authority.certificate("client")
    strange = Authority(tmp_path, "strange").certificate("stranger")
    options = (f"--tls-certificate={server}", f"--tls-client-ca={authority.file}")
    with GatewayProcess(models, tmp_path / "log", *options) as gateway:
        url = f"https://127.0.0.1:{gateway.port}"
        wait_until_ready(gateway, url, trusting(authority, client))

        for shown_by_client in (None, strange):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{url}/health/live", verify=trusting(authority, shown_by_client))


@pytest.mark.slow
def test_unix_socket(tmp_path, models):
    """Only its owner and group can connect; the banner shows how."""
    path = tmp_path / "socket"
    left_over = socket.socket(socket.AF_UNIX)
    left_over.bind(str(path))
    left_over.close()
    with GatewayProcess(models, tmp_path / "log", f"--unix-socket={path}") as gateway:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            for _ in range(3000):
                if "print(" in gateway.output() and answers(client):
                    break
                time.sleep(0.1)
            answer = client.post("http://localhost/v1/chat/completions", json=CHAT)

        assert answer.text.count("yes") == 64
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        first = next(curl_commands(gateway.output())).replace(" \\\n ", "")
        assert first.startswith(f"curl --unix-socket {path} http://localhost/v1/chat/completions ")
    assert not path.exists()  # removed on exit


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("http://localhost/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_unix_socket_in_use_is_kept(tmp_path, models, capsys):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()

        code = main(["serve", f"--model-repository={models}", f"--unix-socket={path}"])

    assert code == 1
    assert "another server listens there" in capsys.readouterr().err


BROKEN = {
    "missing": (None, "is not a file"),
    "empty": (b"", "no certificate with a matching key"),
    "no key": (
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        "no certificate with a matching key",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_certificate_is_an_error(tmp_path, models, capsys, name):
    """One line that names the file."""
    file = tmp_path / "server.pem"
    content, reason = BROKEN[name]
    if content is not None:
        file.write_bytes(content)

    code = main(["serve", f"--model-repository={models}", f"--tls-certificate={file}"])

    error = capsys.readouterr().err
    assert code == 2
    assert f"tls_certificate: {file}" in error
    assert reason in error
    assert error.count("\n") == 1


def test_encrypted_key_is_rejected(tmp_path, authority):
    """Without a prompt."""
    file = authority.certificate("server")
    key = tmp_path / "key.pem"
    key.write_bytes(encrypted_key(b"secret"))

    with pytest.raises(InvalidCertificate, match="encrypted"):
        Certificate(file, key)


def test_encrypted_renewal_keeps_the_old_certificate(tmp_path, authority, caplog):
    """Without a prompt."""
    file, key = authority.certificate("server"), tmp_path / "key.pem"
    key.write_bytes(file.read_bytes())
    certificate = Certificate(file, key)
    key.write_bytes(encrypted_key(b"secret"))

    certificate.reload()

    assert "encrypted" in caplog.text
    assert "stays in force" in caplog.text
    assert shaken_hands(certificate, trusting(authority)) == "server"


def test_tls_settings_require_a_certificate(tmp_path, models, capsys):
    """Otherwise the port would be open without TLS."""
    code = main(["serve", f"--model-repository={models}", f"--tls-key={tmp_path / 'key.pem'}"])

    assert code == 2
    assert "tls_certificate: required by tls_key" in capsys.readouterr().err


def shaken_hands(certificate: Certificate, client: ssl.SSLContext) -> str:
    """Return the name in the certificate that the server presents after a mutual handshake."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for side in (theirs, ours) * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return name_in(theirs.getpeercert(binary_form=True))


def test_incomplete_renewal_keeps_the_old_certificate(tmp_path, authority, caplog):
    """The new one is used when its files are complete."""
    file = authority.certificate("server")
    certificate = Certificate(file)
    for content in (file.read_bytes()[:100], None):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        certificate.reload()
        assert shaken_hands(certificate, trusting(authority)) == "server"
    file.write_bytes(authority.certificate("renewed").read_bytes())
    certificate.reload()

    assert shaken_hands(certificate, trusting(authority)) == "renewed"
    assert caplog.text.count("stays in force") == 2


def test_changed_client_ca_applies_to_new_connections(tmp_path, authority):
    other = Authority(tmp_path, "other")
    file, accepted = authority.certificate("server"), tmp_path / "accepted.pem"
    accepted.write_bytes(authority.file.read_bytes())
    certificate = Certificate(file, client_ca=accepted)
    old, new = (
        trusting(authority, each.certificate(f"client-of-{each.file.stem}"))
        for each in (authority, other)
    )
    assert shaken_hands(certificate, old) == "server"
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shaken_hands(certificate, new)

    accepted.write_bytes(other.file.read_bytes())
    certificate.reload()

    assert shaken_hands(certificate, new) == "server"
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shaken_hands(certificate, old)
