"""`openai_frontend.yaml` next to a model, and the same options in the text of a setting."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from openai_frontend.config.model_options import FILE, ModelOptions, read
from openai_frontend.config.types import OptionsByModel
from openai_frontend.errors import ModelUnavailable
from scripts.fuzz import scratch
from scripts.fuzz.draw import Draw

_SETTINGS = TypeAdapter(OptionsByModel)

WORDS = (
    *(f"{field}: " for field in ModelOptions.model_fields),
    *(
        "&a",
        "*a",
        "<<: ",
        "!!binary",
        "!!bool x",
        "!!int ''",
        "!!timestamp x",
        "? ",
        "2030-13-01",
        "1:60",
        ".nan",
        "{",
        "}",
        "[",
        "]",
        "=",
        ",",
    ),
    *("../", "/", "./", "\x00", "\ufeff"),
)
SEEDS = (
    b"\x00description: a\naliases: [b, c/d]\nmax_model_len: 100\n",
    b"\x00adapters: {a: ./b}\nprompt_embedding_tables: {t: t.npy}\ntensors: {a: b}\n",
    b"\x00&a [*a]",
    b"\x01a:aliases=b;a:max_concurrent_requests=2",
)


def check(data: bytes) -> None:
    draw = Draw(data)
    if draw.byte() & 1:
        _as_setting(draw.rest().decode(errors="replace"))
    else:
        _as_file(draw.rest())


def _as_file(content: bytes) -> None:
    (scratch.folder() / FILE).write_bytes(content)
    try:
        options = read(scratch.folder())
    except ModelUnavailable as error:
        assert "\n" not in error.message
        return
    for name in (*options.aliases, *options.prompt_embedding_tables):
        assert ".." not in Path(name).parts
        assert not name.startswith("/")


def _as_setting(text: str) -> None:
    try:
        _SETTINGS.validate_python(text.split(";"))
    except ValidationError as error:
        assert str(error)
