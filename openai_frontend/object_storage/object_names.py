"""Which names of objects can be files below a model's folder."""

from collections.abc import Iterable

_LONGEST = 255  # bytes of a file's name


def problem(path: str) -> str | None:
    """Why the path of an object cannot be a path below a folder; None if it can."""
    return next(filter(None, map(_problem_of_part, path.split("/"))), None)


def _problem_of_part(part: str) -> str | None:
    if part in ("", ".", ".."):
        return f"it has the part '{part}'"
    if "\\" in part:
        return "it has a backslash"
    if not part.isprintable():
        return "it has a character that is not printable"
    try:
        encoded = part.encode()
    except UnicodeEncodeError:
        return "it is not UTF-8"
    return "a part has more than 255 bytes" if len(encoded) > _LONGEST else None


def clash(files: Iterable[str], folders: Iterable[str]) -> str | None:
    """A path that is both a file and a folder; None if there is none."""
    return min(set(files).intersection(folders), default=None)


def shown(path: str) -> str:
    """For messages."""
    return ascii(path) if not path.isprintable() else f"'{path}'"
