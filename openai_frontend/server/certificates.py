"""The TLS certificate, reloaded when its files change."""

import asyncio
import logging
import ssl
from pathlib import Path

from openai_frontend.runtime.files import FileStamp, file_stamp

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 5.0


class InvalidCertificate(Exception):
    """The message is one line that names the setting and the file."""


class _SwitchableContext(ssl.SSLContext):
    """Delegates to the current context: uvicorn gets one context object at its start."""

    current: ssl.SSLContext

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """asyncio and uvloop call this for each new connection."""
        return self.current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class Certificate:
    """A TLS context. After a change of the files, new connections use the new certificate and
    client CA; open connections keep theirs.
    """

    def __init__(self, chain: Path, key: Path | None = None, client_ca: Path | None = None) -> None:
        """`chain` and `key` are PEM files, or one file. `client_ca`: require client certificates
        signed by one of these authorities. Raises InvalidCertificate.
        """
        self._chain = chain
        self._key = key
        self._client_ca = client_ca
        self._stamps = self._read_stamps()
        self.context = _SwitchableContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.current = self._load()

    async def watch(self, interval_s: float = POLL_INTERVAL_S) -> None:
        """Polls the files until it is cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        """Loads the files if they have changed; if they are invalid, the old certificate stays."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.context.current = self._load()
        except InvalidCertificate as error:
            logger.error("%s; the previous certificate stays in force", error)
            return
        logger.info("%s: certificate reloaded", self._chain)

    def _read_stamps(self) -> list[FileStamp | None]:
        return [file_stamp(path) for path in (self._chain, self._key, self._client_ca) if path]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for name, path in (("tls_certificate", self._chain), ("tls_key", self._key)):
            if path is not None and not path.is_file():
                raise InvalidCertificate(f"{name}: {path} is not a file")
        try:
            context.load_cert_chain(self._chain, self._key, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidCertificate(f"tls_certificate: {self._chain}: {_reason(error)}") from None
        if self._client_ca is not None:
            _require_client_certificates(context, self._client_ca)
        return context


def _require_client_certificates(context: ssl.SSLContext, client_ca: Path) -> None:
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        raise InvalidCertificate(f"tls_client_ca: {client_ca}: {_reason(error)}") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _no_password() -> str:
    """Called instead of a prompt on the terminal."""
    raise ValueError("the private key is encrypted; use one without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate with a matching key").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
