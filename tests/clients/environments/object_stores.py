"""Servers of object storage in the environment `object-storage`, and how tests fill them."""

import base64
import hmac
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import httpx
import obstore
from obstore.store import AzureStore, S3Store

from scripts.setup import clients
from tests.clients.environments import PROGRAMS
from tests.gateway_process import ROOT
from tests.ports import free_port

_VENV = ROOT / clients.CLIENTS / "object-storage"
_START_S = 60
# Azurite's, which its documentation gives
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@contextmanager
def _running(command: list[str], url: str, folder: Path) -> Iterator[None]:
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # `node` is a program that starts Node.js
        process.wait()


def _answers(url: str) -> bool:
    try:
        httpx.get(url)
    except httpx.TransportError:
        return False
    return True


class S3Server:
    """moto. `bucket` is an obstore for its objects."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._http = httpx.Client(base_url=self.url)
        self.bucket = S3Store(
            "models",
            endpoint=self.url,
            access_key_id="test",
            secret_access_key="test",
            client_options={"allow_http": True},
        )
        self.put_raw("")

    @property
    def repository(self) -> str:
        return f"s3://127.0.0.1:{self.port}/models"

    def put(self, folder: Path) -> None:
        """Upload the files below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                obstore.put(self.bucket, str(path.relative_to(folder)), path.read_bytes())

    def put_raw(self, key: str, content: bytes = b"x") -> None:
        """A name that obstore refuses. Without a key, the bucket is made."""
        url = f"{self.url}/models/{quote(key)}" if key else f"{self.url}/models"
        body = content if key else b""
        # httpx would resolve `..`
        request = urllib.request.Request(url, body, dict(_unsigned("s3")), method="PUT")  # noqa: S310
        urllib.request.urlopen(request).close()  # noqa: S310

    def identity(self) -> "Identity":
        """A user who may read; from now on the server checks signatures."""
        self.check_signatures(False)
        self._iam(Action="CreateUser", UserName="reader")
        policy = (
            '{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", '
            '"Resource": "*"}}'
        )
        self._iam(
            Action="PutUserPolicy", UserName="reader", PolicyName="all", PolicyDocument=policy
        )
        made = self._iam(Action="CreateAccessKey", UserName="reader")
        texts = {each.tag.rpartition("}")[2]: each.text for each in made.iter()}
        self.check_signatures(True)
        return Identity(self, str(texts["AccessKeyId"]), str(texts["SecretAccessKey"]))

    def check_signatures(self, checks: bool) -> None:
        self._http.post("/moto-api/reset-auth", content=b"0" if checks else b"1000000")

    def _iam(self, **parameters: str) -> ElementTree.Element:
        answer = self._http.post("/", data=parameters, headers=_unsigned("iam"))
        answer.raise_for_status()
        return ElementTree.fromstring(answer.text)  # noqa: S314  our own server


class Identity:
    """An access key."""

    def __init__(self, server: S3Server, key_id: str, secret: str) -> None:
        self._server = server
        self._key_id = key_id
        self.secret = secret
        self.environment = {"AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": secret}

    def revoke(self) -> None:
        server = self._server
        server.check_signatures(False)
        server._iam(Action="DeleteAccessKey", UserName="reader", AccessKeyId=self._key_id)
        server.check_signatures(True)


def _unsigned(service: str) -> Mapping[str, str]:
    """moto finds the service in the signature's scope."""
    scope = f"test/20260101/us-east-1/{service}/aws4_request"
    return {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=a, Signature=b"}


@contextmanager
def s3(folder: Path, kind: str = "s3") -> Iterator[S3Server]:
    port = free_port()
    command = [str(_VENV / "bin" / "python"), str(PROGRAMS / "serve_s3.py"), str(port), kind]
    with _running(command, f"http://127.0.0.1:{port}/moto-api/", folder):
        yield S3Server(port)


class AzureServer:
    """Azurite, with a container. `bucket` is an obstore for its objects."""

    def __init__(self, port: int) -> None:
        self.repository = f"as://{ACCOUNT}/models"
        self.endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self.environment = {"AZURE_STORAGE_ENDPOINT": self.endpoint}
        signature = self.signature("2099-01-01T00:00:00Z")
        made = httpx.put(f"{self.endpoint}/models?restype=container&{signature}")
        made.raise_for_status()
        self.bucket = AzureStore(
            "models",
            account_name=ACCOUNT,
            account_key=ACCOUNT_KEY,
            endpoint=self.endpoint,
            client_options={"allow_http": True},
        )

    @staticmethod
    def signature(expires: str) -> str:
        """A shared access signature for everything of the account."""
        fields = {
            "sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": expires, "sip": "",
            "spr": "https,http", "sv": "2021-08-06", "ses": "",
        }  # fmt: skip
        text = "\n".join([ACCOUNT, *fields.values(), ""]).encode()
        digest = hmac.digest(base64.b64decode(ACCOUNT_KEY), text, "sha256")
        fields["sig"] = base64.b64encode(digest).decode()
        return urlencode({name: value for name, value in fields.items() if value})


@contextmanager
def azure(folder: Path) -> Iterator[AzureServer]:
    port = free_port()
    command = [
        str(_VENV / "bin" / "node"), str(_VENV / "node_modules" / ".bin" / "azurite-blob"),
        "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck",
        "--disableTelemetry",
    ]  # fmt: skip
    with _running(command, f"http://127.0.0.1:{port}", folder):
        yield AzureServer(port)
