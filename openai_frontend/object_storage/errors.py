"""Why a bucket, or one of its models, cannot be copied. The messages contain no secrets."""

import re
from collections.abc import Mapping


class StorageError(Exception):
    """The bucket cannot be read, or the local folder cannot be written."""


class ModelRefused(Exception):
    """A model whose objects cannot be files of a folder. Others are not affected."""


class ObjectChanged(Exception):
    """An object was replaced or deleted after the bucket was listed."""


# Facts in the text of an obstore error. Nothing else of it is shown: it may contain signed URLs.
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z]*){0,4})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_CREDENTIALS = {
    "token request": "no credentials were found",
    "169.254.169.254": "no credentials were found",  # the cloud's metadata service
    "OpenCredentials": "the credentials file cannot be opened",
    "DecodeCredentials": "the credentials file has another format",
    "Invalid Access Key:": "the account key is not base64",
}
_CONNECTION = {
    "Connection refused": "the connection was refused",
    "dns error": "the host name was not found",
    "TimedOut": "the server did not answer in time",
    "timed out": "the server did not answer in time",
    "certificate": "the server's certificate is not trusted",
}
_UNKNOWN = "the server did not answer as expected"


def cause(error: Exception) -> str:
    """The cause of an obstore error, such as `403 Forbidden (ExpiredToken)`."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if (reason := _fact(text, _CREDENTIALS)) is not None:
        return reason
    if status is not None:
        return f"{status[1]} ({code[1]})" if code else status[1]
    return _fact(text, _CONNECTION) or _UNKNOWN


def _fact(text: str, facts: Mapping[str, str]) -> str | None:
    return next((reason for fact, reason in facts.items() if fact in text), None)
