"""Names and signatures of a package are found in its sources, without importing it."""

import textwrap
import zipfile
from pathlib import Path

import pytest

from openai_frontend.engines.vllm.package_source import PackageSource, folder, wheel

FILES = {
    "p/__init__.py": "from .base import Base as Renamed\nimport missing_package\n",
    "p/base.py": """
        from elsewhere import Foreign
        try:
            import fast
        except ImportError:
            fast = None
        class Base(Foreign):
            field: int
            def method(self, one, *, two=2):
                self.assigned = self.nested.ignored = 1
                self.annotated: int = 2
        Alias = Base
        VERSION = "1.2"
        def open_ended(first, **others): ...
    """,
    "p/derived.py": """
        from p import Renamed
        from ..q import gone
        class Struct(Renamed, Generic[T]):
            added: str = ""
        class Made(Renamed):
            def __init__(self, given): self.given = given
        async def function(a, /, b): ...
    """,
    "broken.py": "def (",
}
MET = (
    "p",
    "p:Renamed",
    "p.base:Base.method(one, two)",
    "p.base:Base.assigned",
    "p.base:Base.annotated",
    "p.base:Foreign",
    "p.base:fast",
    "p.base:Alias.field",
    "p.base:open_ended(anything)",
    "p.derived:Struct(field, added)",
    "p.derived:Struct.method(one)",
    "p.derived:Made(given)",
    "p.derived:function(a, b)",
    "p:absent | p.base:Base",
)
UNMET = {
    "p.absent": "p.absent does not exist or cannot be parsed",
    "broken": "broken does not exist or cannot be parsed",
    "p.base:Absent": "p.base has no Absent",
    "p.base:Base.ignored": "p.base: Base has no ignored",
    "p.base:Base.method(one, three)": "p.base:Base.method does not accept three",
    "p.derived:Struct(field, three, four)": "p.derived:Struct does not accept four, three",
    "p.derived:Made(field)": "p.derived:Made does not accept field",
    "p:absent | p:gone": "p has no absent",
}


def sources(kind: str, tmp_path: Path) -> PackageSource:

    texts = {name: textwrap.dedent(text) for name, text in FILES.items()}
    if kind == "wheel":
        path = tmp_path / "p.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in texts.items():
                archive.writestr(name, text)
        return PackageSource(wheel(path))
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return PackageSource(folder(tmp_path))


@pytest.mark.parametrize("kind", ["folder", "wheel"])
def test_met_requirements(kind: str, tmp_path: Path) -> None:
    """Through imports, aliases, bases and fields, in a folder and in a wheel."""
    package = sources(kind, tmp_path)

    assert {each: package.problem(each) for each in MET} == dict.fromkeys(MET)


@pytest.mark.parametrize("kind", ["folder", "wheel"])
def test_unmet_requirements_are_named(kind: str, tmp_path: Path) -> None:
    """The problem says what is missing and where; of alternatives, the first."""
    package = sources(kind, tmp_path)

    assert {each: package.problem(each) for each in UNMET} == UNMET


def test_constant(tmp_path: Path) -> None:
    """The text that a module assigns to a name."""
    package = sources("folder", tmp_path)

    assert package.constant("p.base", "VERSION") == "1.2"
    assert package.constant("p.base", "absent") is None
    assert package.constant("absent", "VERSION") is None
