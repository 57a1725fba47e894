import asyncio
import logging
import os

import pytest

from openai_frontend.auth import keys_file
from openai_frontend.auth.keys_file import InvalidKeysFile, KeysFileWatcher
from openai_frontend.errors import NotAuthenticated
from openai_frontend.runtime.heartbeat import Heartbeat
from tests.fast.auth.key_files import key, write


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "keys.yaml", key("a"))


def opens(watched, secret):
    try:
        return watched.keys.authenticate(secret.encode()).key.name
    except NotAuthenticated:
        return None


async def test_changed_file_replaces_the_keys(path):
    watched = KeysFileWatcher(path)
    write(path, key("b"))

    await watched.refresh()
    assert [opens(watched, each) for each in "ab"] == [None, "b"]


async def test_swapped_file_is_read(path, tmp_path):
    """Editors and Kubernetes put another file under the same name, possibly an older one."""
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    watched = KeysFileWatcher(link)
    other = write(tmp_path / "other.yaml", key("b"))
    os.utime(other, ns=(0, path.stat().st_mtime_ns))
    link.unlink()
    link.symlink_to(other)

    await watched.refresh()
    assert opens(watched, "b") == "b"


@pytest.mark.parametrize("spoil", ["broken", "gone"])
async def test_invalid_file_keeps_the_previous_keys(path, spoil, caplog):
    """It is logged once; the next valid file is used."""
    watched = KeysFileWatcher(path)
    if spoil == "gone":
        path.unlink()
    else:
        path.write_text("keys: [")
    for _ in range(3):
        await watched.refresh()

    assert opens(watched, "a") == "a"
    [line] = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert str(path) in line
    assert line.endswith("the previous keys stay in force")
    write(path, key("b"))
    await watched.refresh()
    assert [opens(watched, each) for each in "ab"] == [None, "b"]


def test_invalid_file_at_startup_is_an_error(path):
    path.write_text("keys: [")

    with pytest.raises(InvalidKeysFile, match=r"keys\.yaml: invalid YAML in line \d"):
        KeysFileWatcher(path)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o644, 0), (0o660, 1), (0o666, 1)])
def test_warns_of_a_writable_file(path, mode, warned, caplog):
    """A user who can write the file can grant access."""
    path.chmod(mode)
    KeysFileWatcher(path)

    assert caplog.text.count("group- or world-writable") == warned


async def test_unchanged_file_is_not_read(path, monkeypatch):
    """A poll costs one stat call."""
    watched = KeysFileWatcher(path)
    monkeypatch.setattr("openai_frontend.auth.keys_file.read", None)

    await watched.refresh()
    assert opens(watched, "a") == "a"


async def test_watcher_follows_the_file(path, monkeypatch):
    """New keys are valid, removed ones are not."""
    watched = KeysFileWatcher(path)
    monkeypatch.setattr(keys_file, "POLL_INTERVAL_S", 0.0)
    following = asyncio.create_task(watched.watch(Heartbeat(idle_s=0.01)))
    write(path, key("b"))

    async with asyncio.timeout(30):
        while opens(watched, "b") is None:  # noqa: ASYNC110  a thread reads the file
            await asyncio.sleep(0.005)
    following.cancel()
    assert opens(watched, "a") is None


async def test_static_keys_stay_valid_when_the_file_changes(path):
    watched = KeysFileWatcher(path, [key("general")])
    before = [opens(watched, each) for each in ("general", "a")]
    write(path, key("b"))
    await watched.refresh()

    assert before == ["general", "a"]
    assert [opens(watched, each) for each in ("general", "a", "b")] == ["general", None, "b"]


def test_file_entry_overrides_a_static_key(path):
    """The file can limit the key, which a command line cannot."""
    watched = KeysFileWatcher(path, [key("api_key:1", secret="a")])
    assert opens(watched, "a") == "a"
