import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from openai_frontend.auth import keys_file
from openai_frontend.auth.keys_file import InvalidKeysFile, KeyExists, UnknownKey
from tests.fast.auth.key_files import key


@pytest.mark.parametrize("name", ["keys.yaml", "keys.json"])
def test_add_and_revoke(name, tmp_path):
    """Only the owner can read the file."""
    path = tmp_path / name
    keys_file.add(path, key("a"))
    keys_file.add(path, key("b"))
    keys_file.revoke(path, "a")

    assert [key("b")] == keys_file.read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path] == list(tmp_path.iterdir())


def test_add_does_not_replace_a_key(tmp_path):
    path = tmp_path / "keys.yaml"
    keys_file.add(path, key("a"))

    with pytest.raises(KeyExists):
        keys_file.add(path, key("a", secret="other"))
    assert [key("a")] == keys_file.read(path)


def test_revoking_an_unknown_key_fails(tmp_path):
    """Also without a file, which is not created."""
    path = tmp_path / "keys.yaml"
    with pytest.raises(UnknownKey):
        keys_file.revoke(path, "a")

    assert not path.exists()


def test_invalid_file_is_not_overwritten(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("keys: [")

    with pytest.raises(InvalidKeysFile):
        keys_file.add(path, key("a"))
    assert path.read_text() == "keys: ["
    assert [path] == list(tmp_path.iterdir())


def test_symbolic_link_is_kept(tmp_path):
    """The edit changes its target."""
    path, link = tmp_path / "keys.yaml", tmp_path / "link.yaml"
    link.symlink_to(path)

    keys_file.add(link, key("a"))
    assert link.is_symlink()
    assert [key("a")] == keys_file.read(path)


def test_concurrent_edits_are_not_lost(tmp_path):
    path = tmp_path / "keys.yaml"
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda n: keys_file.add(path, key(str(n))), range(20)):
            pass

    assert len(keys_file.read(path)) == 20
