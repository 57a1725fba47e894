"""The server's certificate for TLS, as its files have it now. Knows no request."""

import asyncio
import logging
import ssl
from pathlib import Path

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0

_Mark = tuple[int, int]  # of a file's content: it changes with it


class InvalidCertificate(Exception):
    """The files hold no certificate with its key; one line that names the file."""


class _Followed(ssl.SSLContext):
    """What a server is given once, and asks for each connection: the context in force."""

    in_force: ssl.SSLContext

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Python's and uvloop's word for a new connection."""
        return self.in_force.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class Certificate:
    """A context for connections; those that come after a change of the files get the new
    certificate and are held to the new authorities, those that are open keep theirs.
    """

    def __init__(self, chain: Path, key: Path | None = None, client_ca: Path | None = None) -> None:
        """`chain` and `key` are PEM files, or one file. `client_ca`: clients must show a
        certificate that one of these has signed. Raises InvalidCertificate.
        """
        self._chain = chain
        self._key = key
        self._client_ca = client_ca
        self._marks = self._look()
        self.context = _Followed(ssl.PROTOCOL_TLS_SERVER)
        self.context.in_force = self._loaded()

    async def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Looks at the files for ever."""
        while True:
            await asyncio.sleep(every_s)
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        """Takes the files where they have changed; what cannot be read leaves the old in force."""
        marks = self._look()
        if marks == self._marks:
            return
        self._marks = marks
        try:
            self.context.in_force = self._loaded()
        except InvalidCertificate as error:
            logger.error("%s; the certificate that was read before stays in force", error)
            return
        logger.info("%s: the certificate was read again", self._chain)

    def _look(self) -> list[_Mark | None]:
        return [_mark(path) for path in (self._chain, self._key, self._client_ca) if path]

    def _loaded(self) -> ssl.SSLContext:
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
            _demand(context, self._client_ca)
        return context


def _mark(path: Path) -> _Mark | None:
    """None where it cannot be looked at; loading says why."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _demand(context: ssl.SSLContext, client_ca: Path) -> None:
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        raise InvalidCertificate(f"tls_client_ca: {client_ca}: {_reason(error)}") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _no_password() -> str:
    """In place of a question on the terminal, which nobody would answer."""
    raise ValueError("its key is encrypted; this server takes one without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate with its key").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
