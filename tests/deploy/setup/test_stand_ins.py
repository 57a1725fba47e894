import zipfile

import pytest

from scripts.setup.stand_ins import STAND_INS, constraints, write_stand_ins


@pytest.mark.parametrize(("name", "version"), STAND_INS.items())
def test_stand_in_has_metadata_and_no_module(tmp_path, name, version):
    """It contains only dist-info, so it cannot be imported."""

    write_stand_ins(tmp_path)
    wheel = tmp_path / f"{name}-{version}-py3-none-any.whl"

    with zipfile.ZipFile(wheel) as archive:
        folders = {path.split("/")[0] for path in archive.namelist()}
        metadata = archive.read(f"{name}-{version}.dist-info/METADATA").decode()

    assert folders == {f"{name}-{version}.dist-info"}
    assert f"Name: {name}\nVersion: {version}\n" in metadata


def test_every_stand_in_has_a_constraint():
    """Otherwise an index would provide the real package."""

    assert constraints() == [f"{name}=={version}" for name, version in STAND_INS.items()]
