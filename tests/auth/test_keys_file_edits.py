import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from openai_frontend.auth import keys_file
from openai_frontend.auth.keys_file import InvalidKeysFile, KeyExists, UnknownKey
from tests.auth.key_files import key


@pytest.mark.parametrize("name", ["keys.yaml", "keys.json"])
def test_adding_and_revoking(name, tmp_path):
    """The file holds what was added and not revoked, for its owner alone."""
    path = tmp_path / name
    keys_file.add(path, key("a"))
    keys_file.add(path, key("b"))
    keys_file.revoke(path, "a")

    assert [key("b")] == keys_file.read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path] == list(tmp_path.iterdir())


def test_a_name_that_is_taken(tmp_path):
    """A key is never replaced in silence."""
    path = tmp_path / "keys.yaml"
    keys_file.add(path, key("a"))

    with pytest.raises(KeyExists):
        keys_file.add(path, key("a", secret="other"))
    assert [key("a")] == keys_file.read(path)


def test_a_name_that_is_not_there(tmp_path):
    """Revoking it is a mistake, also where there is no file; none is made."""
    path = tmp_path / "keys.yaml"
    with pytest.raises(UnknownKey):
        keys_file.revoke(path, "a")

    assert not path.exists()


def test_a_broken_file_is_left_alone(tmp_path):
    """What a person has written is not lost."""
    path = tmp_path / "keys.yaml"
    path.write_text("keys: [")

    with pytest.raises(InvalidKeysFile):
        keys_file.add(path, key("a"))
    assert path.read_text() == "keys: ["
    assert [path] == list(tmp_path.iterdir())


def test_a_link_stays_one(tmp_path):
    """The file that it names is changed."""
    path, link = tmp_path / "keys.yaml", tmp_path / "link.yaml"
    link.symlink_to(path)

    keys_file.add(link, key("a"))
    assert link.is_symlink()
    assert [key("a")] == keys_file.read(path)


def test_two_commands_at_once(tmp_path):
    """Neither loses what the other adds."""
    path = tmp_path / "keys.yaml"
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda n: keys_file.add(path, key(str(n))), range(20)):
            pass

    assert len(keys_file.read(path)) == 20
