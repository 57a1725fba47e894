"""Writes docs/settings.md from the table of settings."""

from itertools import groupby
from pathlib import Path

from openai_frontend.setting_table import Option, options

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

HEAD = """\
# Settings

Written by `python -m scripts.generate_settings_docs` from the table in
`openai_frontend/settings.py`; do not edit.

Each setting has three spellings: a flag of `openai-frontend serve`, an environment variable, and a
key of the YAML file that `--config` names. A flag wins over the environment, the environment over
the file, the file over the default. Where no default stands, Triton's own holds.

```
openai-frontend serve --max-body-bytes 1048576
OPENAI_FRONTEND_MAX_BODY_BYTES=1048576 openai-frontend serve
echo 'max_body_bytes: 1048576' > gateway.yaml && openai-frontend serve --config gateway.yaml
```

A setting whose value ends in ... takes several: repeat the flag, put commas between them in the
environment, or write a list (`KEY=VALUE`, `NAME:KEY=VALUE` and `DEVICE:NUMBER` as a mapping) in
YAML:

```yaml
model_repository: [/models, /more-models]
backend_config:
  python: {shm-default-byte-size: 16777216}
cuda_memory_pool_bytes: {0: 268435456}
rate_limiter_resource: ["copies:4", "gpu-slots:1:0"]
```

On SIGHUP a running server reads the file and the environment again, and takes up what is marked in
the column `reload` ([lifecycle.md](lifecycle.md)); the rest takes effect at the next start.

A switch is set by its flag and unset by `--no-` and its name; elsewhere it is `true` or `false`.
In Kubernetes set `enableServiceLinks: false`, or a service called openai-frontend puts an
OPENAI_FRONTEND_PORT of its own into the environment.
"""

COLUMNS = "| flag | YAML key | value | default | reload | what it is |\n|---|---|---|---|---|---|\n"


def page() -> str:
    """The whole page."""
    groups = groupby(options(), key=lambda option: option.group)
    sections = (f"\n## {name}\n\n{COLUMNS}{''.join(map(row, group))}" for name, group in groups)
    return HEAD + "".join(sections)


def row(option: Option) -> str:
    """One line of a table; the environment variable is the key in capitals after the prefix."""
    form = option.form.replace("|", " or ") or "switch"
    several = " ..." if option.repeats else ""
    default = f"`{option.default_text}`" if option.default_text else ""
    reload = "yes" if option.reloads else ""
    cells = (f"`{option.flag}`", f"`{option.name}`", form + several, default, reload)
    return f"| {' | '.join(cells)} | {option.field.description} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
