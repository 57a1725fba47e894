"""Chat templates by name, for models that bring none of their own. Only reads files."""

from importlib import resources


def names() -> list[str]:
    """The names that `read` knows."""
    files = (entry.name for entry in resources.files(__package__).iterdir())
    return sorted(name.removesuffix(".jinja") for name in files if name.endswith(".jinja"))


def read(name: str) -> str:
    """The template of that name; KeyError where there is none."""
    if name not in names():
        raise KeyError(name)
    return resources.files(__package__).joinpath(f"{name}.jinja").read_text(encoding="utf-8")
