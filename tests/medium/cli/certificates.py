"""Certificates for tests, signed by a test CA."""

from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Signs certificates; `file` has its own certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def certificate(self, name: str) -> Path:
        """A file with a certificate for 127.0.0.1 and its key."""
        issued = self._ca.issue_cert("127.0.0.1", common_name=name)
        path = self._folder / f"{name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path


def encrypted_key(password: bytes) -> bytes:
    """A new private key in PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
