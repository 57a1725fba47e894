import asyncio
import logging
import os

import pytest

from openai_frontend.auth.keys_file import InvalidKeysFile
from openai_frontend.auth.keys_watcher import KeysFileWatcher
from openai_frontend.errors import NotAuthenticated
from tests.auth.key_files import key, write


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "keys.yaml", key("a"))


def opens(watched, secret):
    try:
        return watched.keys.authenticate(secret.encode()).key.name
    except NotAuthenticated:
        return None


async def test_a_changed_file(path):
    """Keys that come are in force, and those that went are not."""
    watched = KeysFileWatcher(path)
    write(path, key("b"))

    await watched.refresh()
    assert [opens(watched, each) for each in "ab"] == [None, "b"]


async def test_a_file_that_is_swapped(path, tmp_path):
    """As editors and Kubernetes do it: another file under the same name, however old."""
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
async def test_a_broken_file(path, spoil, caplog):
    """The keys stay as they were, which one line says once; a good file is taken again."""
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


def test_a_broken_file_at_the_start(path):
    """There is nothing to fall back to: it is a failure."""
    path.write_text("keys: [")

    with pytest.raises(InvalidKeysFile, match=r"keys\.yaml: invalid YAML in line \d"):
        KeysFileWatcher(path)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o644, 0), (0o660, 1), (0o666, 1)])
def test_a_file_that_others_may_write(path, mode, warned, caplog):
    """It is said: whoever writes it says who may come in."""
    path.chmod(mode)
    KeysFileWatcher(path)

    assert caplog.text.count("group- or world-writable") == warned


async def test_a_file_that_stays_is_not_read(path, monkeypatch):
    """A look costs a stat."""
    watched = KeysFileWatcher(path)
    monkeypatch.setattr("openai_frontend.auth.keys_file.read", None)

    await watched.refresh()
    assert opens(watched, "a") == "a"


async def test_watcher_follows_the_file(path):
    """New keys are valid, removed ones are not."""
    watched = KeysFileWatcher(path)
    following = asyncio.create_task(watched.watch(0.01))
    write(path, key("b"))

    async with asyncio.timeout(5):
        while opens(watched, "b") is None:  # noqa: ASYNC110  a thread reads the file
            await asyncio.sleep(0.005)
    following.cancel()
    assert opens(watched, "a") is None


async def test_general_keys_stay_while_the_file_changes(path):
    """They are in force beside the file's, before and after."""
    watched = KeysFileWatcher(path, [key("general")])
    before = [opens(watched, each) for each in ("general", "a")]
    write(path, key("b"))
    await watched.refresh()

    assert before == ["general", "a"]
    assert [opens(watched, each) for each in ("general", "a", "b")] == ["general", None, "b"]


def test_the_file_decides_on_a_key_that_is_general_too(path):
    """It may limit the key, which a command line cannot."""
    watched = KeysFileWatcher(path, [key("api_key:1", secret="a")])
    assert opens(watched, "a") == "a"
