"""Model repositories in object storage, in tritonserver's spellings, and their local folders."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from openai_frontend.runtime.cache_folder import cache_folder

Scheme = Literal["s3", "gs", "as"]

# tritonserver's variables for the folder that receives the objects
_FOLDER_VARIABLES: Mapping[Scheme, str] = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}
_FORMS: Mapping[Scheme, str] = {
    "s3": "s3://BUCKET/PATH or s3://HOST:PORT/BUCKET/PATH",
    "gs": "gs://BUCKET/PATH",
    "as": "as://ACCOUNT/CONTAINER/PATH",
}
_SCHEME = re.compile(r"(s3|gs|as)://(.*)", re.DOTALL)
# Like tritonserver: without a protocol, a host must have a port
_S3_HOST = re.compile(r"(?:(https?)://)?([0-9A-Za-z.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_BUCKET = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{1,254}")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_AZURE_DOMAIN = ".blob.core.windows.net"


@dataclass(frozen=True, kw_only=True)
class BucketRepository:
    """A model repository in a bucket of S3 or Google Cloud, or in a container of Azure."""

    url: str  # as given; never contains a secret
    scheme: Scheme
    bucket: str
    prefix: str = ""  # without slashes at its ends
    endpoint: str | None = None  # S3 only: scheme, host and port of another server than AWS
    account: str | None = None  # Azure only

    def __str__(self) -> str:
        return self.url

    def folder(self) -> Path:
        """The local folder of everything from this bucket; the same at each start.

        Raises ValueError without a home folder.
        """
        variable = _FOLDER_VARIABLES[self.scheme]
        named = os.environ.get(variable)
        base = Path(named).absolute() if named else cache_folder()
        if base is None:
            raise ValueError(f"no home folder for the files of {self}; set {variable}")
        identity = (self.scheme, self.endpoint, self.account, self.bucket, self.prefix)
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        return base / "buckets" / f"{self.scheme}-{self.bucket}-{digest}"

    def models(self) -> Path:
        """The local model repository."""
        return self.folder() / "models"


def is_bucket_url(text: str) -> bool:
    return _SCHEME.match(text) is not None


def parse(url: str) -> BucketRepository:
    """Raises ValueError, without the URL if it may contain a secret."""
    scheme, rest = _scheme_and_rest(url)
    form = _FORMS[scheme]
    if "@" in rest or "?" in rest or "#" in rest:
        raise ValueError(f"must have the form {form}, without credentials, query and fragment")
    parse_rest = {"s3": _s3, "gs": _google, "as": _azure}[scheme]
    repository = parse_rest(url, rest)
    if repository is None or not _BUCKET.fullmatch(repository.bucket):
        raise ValueError(f"must have the form {form}")
    if any(part in (".", "..") or not part.isprintable() for part in _parts(repository.prefix)):
        raise ValueError("must not contain '.', '..' or characters that are not printable")
    return repository


def may_contain_secret(value: object) -> bool:
    """Whether a message must not repeat the value of the setting."""
    return isinstance(value, str) and is_bucket_url(value) and bool(re.search("[@?#]", value))


def _scheme_and_rest(url: str) -> tuple[Scheme, str]:
    for scheme in _FORMS:
        if url.startswith(f"{scheme}://"):
            return scheme, url.removeprefix(f"{scheme}://")
    raise ValueError(f"must have the form {' or '.join(_FORMS.values())}")


def _parts(path: str) -> list[str]:
    """tritonserver ignores repeated slashes too."""
    return [part for part in path.split("/") if part]


def _s3(url: str, rest: str) -> BucketRepository | None:
    protocol, _, path = rest.rpartition("://")
    first, *parts = _parts(path) or [""]
    host = _S3_HOST.fullmatch(f"{protocol}://{first}" if protocol else first)
    if host is None or not (protocol or host[3]):
        named = BucketRepository(url=url, scheme="s3", bucket=first, prefix="/".join(parts))
        return None if protocol else named
    endpoint = f"{protocol or 'http'}://{first}"
    if not (parts and _is_valid_port(endpoint)):
        return None
    bucket, *prefix = parts
    return BucketRepository(
        url=url, scheme="s3", bucket=bucket, prefix="/".join(prefix), endpoint=endpoint
    )


def _is_valid_port(endpoint: str) -> bool:
    try:
        return urlsplit(endpoint).port != 0
    except ValueError:
        return False


def _google(url: str, rest: str) -> BucketRepository | None:
    bucket, *prefix = _parts(rest) or [""]
    return BucketRepository(url=url, scheme="gs", bucket=bucket, prefix="/".join(prefix))


def _azure(url: str, rest: str) -> BucketRepository | None:
    account, *parts = _parts(rest) or [""]
    account = account.removesuffix(_AZURE_DOMAIN)
    if not (parts and _ACCOUNT.fullmatch(account)):
        return None
    container, *prefix = parts
    return BucketRepository(
        url=url, scheme="as", bucket=container, prefix="/".join(prefix), account=account
    )
