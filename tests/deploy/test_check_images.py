"""`make check-images` reports what would stop a build of an image."""

from pathlib import Path

import pytest

from scripts import check_images
from scripts.check_images import Image
from scripts.setup.stand_ins import write_wheel

pytestmark = pytest.mark.slow  # pip in a process of its own

IMAGE = Image("3.12", 39, ("lock.txt",))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with one wheel of `thing`, which fits every Python."""
    folder = tmp_path / "thing"
    folder.mkdir()
    wheel = write_wheel(folder, "thing", "1.0")
    (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", tmp_path.as_uri())
    return folder


def test_package_for_every_python_is_found(index, monkeypatch) -> None:
    """Nothing is reported."""
    monkeypatch.setattr(check_images, "pins", lambda image: ["thing==1.0"])

    assert check_images.check(IMAGE) == []


@pytest.mark.parametrize("tag", ["cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-linux_aarch64"])
def test_wheel_for_another_python_or_machine_is_reported(index, monkeypatch, tag) -> None:
    """pip names the package for which the image's Python and system have no wheel."""
    [wheel] = index.glob("*.whl")
    other = wheel.rename(index / f"thing-1.0-{tag}.whl")
    (index / "index.html").write_text(f'<a href="{other.name}">{other.name}</a>')
    monkeypatch.setattr(check_images, "pins", lambda image: ["thing==1.0"])

    [*_, last] = check_images.check(IMAGE)

    assert last == "ERROR: No matching distribution found for thing==1.0"
