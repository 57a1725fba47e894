"""The settings file, which the server reads again while it runs: settings, or a one-line error."""

from openai_frontend.config.loader import InvalidSettings, load
from openai_frontend.config.settings import Settings
from scripts.fuzz import scratch

WORDS = (
    *(f"{field}: " for field in Settings.model_fields),
    *("&a", "*a", "<<: ", "!!binary", "!!bool x", "!!int ''", "!!timestamp x", "? ", "2030-13-01"),
    *("1:60", ".nan", "{", "}", "[", "]", "=", ",", "true", "-1", "1e999", "\x00", "\ufeff"),
)
SEEDS = (
    b"port: 8000\nhost: 127.0.0.1\nmodel_repository: [a]\n",
    b"model_options: {a: {aliases: [b]}}\nchat_template: {a: chatml}\n",
    b"max_n: 1e400\nport: -1\n",
)


def check(data: bytes) -> None:
    file = scratch.folder() / "settings.yaml"
    file.write_bytes(data)
    try:
        load(config=file)
    except InvalidSettings as error:
        assert "\n" not in str(error), error
