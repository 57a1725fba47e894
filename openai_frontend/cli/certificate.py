"""The server's certificate for TLS, as its files have it now. Knows no request."""

import asyncio
import logging
import ssl
from pathlib import Path

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0

_Marks = list[tuple[int, int]]  # of the files' content: they change with it


class InvalidCertificate(Exception):
    """The files hold no certificate with its key; one line that names the file."""


class Certificate:
    """A context for connections; those that come after a change of the files get the new
    certificate, those that are open keep theirs.
    """

    def __init__(self, chain: Path, key: Path | None = None, client_ca: Path | None = None) -> None:
        """`chain` and `key` are PEM files, or one file. `client_ca`: clients must show a
        certificate that one of these has signed; it is read once. Raises InvalidCertificate.
        """
        self._chain = chain
        self._key = key
        self._marks = self._look()
        self.context = self._loaded(client_ca)

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
            self._loaded(None)  # aside: a half-written pair must not break the one in force
            self._load_into(self.context)
        except InvalidCertificate as error:
            logger.error("%s; the certificate that was read before stays in force", error)
            return
        logger.info("%s: the certificate was read again", self._chain)

    def _look(self) -> _Marks:
        """Nothing of a file that is away; loading says so."""
        files = (path for path in (self._chain, self._key) if path is not None and path.exists())
        return [(path.stat().st_mtime_ns, path.stat().st_ino) for path in files]

    def _loaded(self, client_ca: Path | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for name, path in (("tls_certificate", self._chain), ("tls_key", self._key)):
            if path is not None and not path.is_file():
                raise InvalidCertificate(f"{name}: {path} is not a file")
        self._load_into(context)
        if client_ca is not None:
            _demand(context, client_ca)
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._chain, self._key, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidCertificate(f"tls_certificate: {self._chain}: {_reason(error)}") from None


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
