"""The configuration of obstore for a bucket: tritonserver's credentials, and those of the clouds.

tritonserver's sources win: its credentials file, then the variables that it documents. obstore
itself reads the clouds' other variables and asks the instance's metadata service.
"""

import configparser
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_frontend.config.bucket_repositories import BucketRepository
from openai_frontend.object_storage.errors import StorageError

CREDENTIALS_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"

Config = dict[str, Any]


def store_config(repository: BucketRepository) -> Config:
    """Raises StorageError if credentials are named that cannot be read."""
    entry = _entry(repository)
    if repository.scheme == "s3":
        return _s3(repository, entry)
    if repository.scheme == "gs":
        return _google(entry)
    return _azure(repository, entry)


def _entry(repository: BucketRepository) -> Any:
    """The entry of tritonserver's credentials file for the bucket; None without a file."""
    named = os.environ.get(CREDENTIALS_FILE)
    if not named:
        return None
    try:
        content = json.loads(Path(named).read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{CREDENTIALS_FILE}: {named}: {error.strerror}") from None
    except ValueError:
        raise StorageError(f"{CREDENTIALS_FILE}: {named} is not JSON") from None
    entries = content.get(repository.scheme) if isinstance(content, dict) else None
    matching = [name for name in entries or {} if repository.url.startswith(name)]
    if not isinstance(entries, dict) or not matching:
        raise StorageError(f"{CREDENTIALS_FILE}: {named} has no entry for {repository}")
    return entries[max(matching, key=len)]


def _texts(entry: Any) -> Mapping[str, str]:
    """The members of an entry that are set. Messages must not contain them."""
    if not isinstance(entry, dict) or not all(isinstance(each, str) for each in entry.values()):
        raise StorageError(f"{CREDENTIALS_FILE}: an entry must be an object with texts")
    return {name: text for name, text in entry.items() if text}


_S3_MEMBERS = {  # of the credentials file
    "key_id": "access_key_id",
    "secret_key": "secret_access_key",
    "session_token": "session_token",
    "region": "region",
}
_PROFILE_KEYS = {  # of the AWS command line's files
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}


def _s3(repository: BucketRepository, entry: Any) -> Config:
    if entry is None:
        profile = os.environ.get("AWS_PROFILE", "")
        own, has_keys = {}, bool(os.environ.get("AWS_ACCESS_KEY_ID"))
    else:
        texts = _texts(entry)
        profile = texts.get("profile", "")
        own = {ours: texts[theirs] for theirs, ours in _S3_MEMBERS.items() if theirs in texts}
        has_keys = "access_key_id" in own
    config = own if has_keys else {**_profile(profile), **own}
    if "region" not in config and (region := os.environ.get("AWS_REGION")):
        config["region"] = region
    if repository.endpoint is not None:
        config |= {"endpoint": repository.endpoint, "virtual_hosted_style_request": False}
    return config


def _profile(name: str) -> Config:
    """Read the AWS command line's files. Without them the default profile is empty."""
    home = Path.home() / ".aws"
    credentials = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    config = Path(os.environ.get("AWS_CONFIG_FILE") or home / "config")
    section = name or "default"
    found: Config = {}
    # The credentials file wins
    for path, title in ((config, f"profile {section}"), (config, section), (credentials, section)):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, UnicodeDecodeError, configparser.Error):
            raise StorageError(f"{path} is not a file of the AWS command line") from None
        if parser.has_section(title):
            values = dict(parser.items(title))
            found |= {ours: values[key] for key, ours in _PROFILE_KEYS.items() if key in values}
    if name and "access_key_id" not in found:
        raise StorageError(
            f"AWS_PROFILE: the profile '{name}' has no aws_access_key_id in {credentials}"
        )
    return found


def _google(entry: Any) -> Config:
    if entry is not None and not isinstance(entry, str):
        raise StorageError(f"{CREDENTIALS_FILE}: an entry of 'gs' must be the path of a file")
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") if entry is None else entry
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):  # a variable of Google's libraries
        url = emulator if "://" in emulator else f"http://{emulator}"
        return {"base_url": url, "skip_signature": True}
    return {"application_credentials": path} if path else {}


# Other credentials that obstore reads by itself
_AZURE_CREDENTIALS = (
    "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_TOKEN",
    "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE",
)  # fmt: skip


def _azure(repository: BucketRepository, entry: Any) -> Config:
    if entry is None:
        variables = {
            "account_str": "AZURE_STORAGE_ACCOUNT",
            "account_key": "AZURE_STORAGE_KEY",
            "auth_type": "AZURE_STORAGE_AUTH_TYPE",
            "client_id": "AZURE_STORAGE_CLIENT_ID",
        }
        texts: Mapping[str, str] = {
            name: text for name, key in variables.items() if (text := os.environ.get(key))
        }
    else:
        texts = _texts(entry)
    config: Config = {"account_name": texts.get("account_str") or repository.account}
    kind = texts.get("auth_type") or "key"
    if kind not in ("key", "managed_identity", "default"):
        raise StorageError("AZURE_STORAGE_AUTH_TYPE: must be key, managed_identity or default")
    if kind == "managed_identity":
        config["credential_type"] = "managed_identity"
    if kind != "key" and "client_id" in texts:
        config["client_id"] = texts["client_id"]
    if kind == "key" and "account_key" in texts:
        config["account_key"] = texts["account_key"]
    elif kind == "key" and not any(map(os.environ.get, _AZURE_CREDENTIALS)):
        config["skip_signature"] = True  # a public container, as in tritonserver
    return config
