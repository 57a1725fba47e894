"""Writes the configurations that `connect` prints into docs/agents.md."""

import re
from pathlib import Path

from openai_frontend.cli.connect.agents import AGENTS
from openai_frontend.cli.connect.command import PLACEHOLDER, start_line
from openai_frontend.cli.connect.configuration import AgentModel, AgentSpec, GatewayAccess

PAGE = Path(__file__).parent.parent / "docs" / "agents.md"
MODEL = AgentModel(name="qwen", context_tokens=131_072, output_tokens=32_000)
ACCESS = GatewayAccess(url="http://127.0.0.1:9000", key_variable="OPENAI_API_KEY")
_BEGIN, _END = "<!-- written by scripts/generate_connect_docs.py -->\n", "<!-- end -->\n"
_LANGUAGES = {".json": "json", ".toml": "toml"}


def page() -> str:
    """The page with the current configurations."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    sections = "\n".join(_section(*each) for each in AGENTS.items())
    return f"{before}{_BEGIN}\n{sections}\n{_END}{after}"


def _section(name: str, spec: AgentSpec) -> str:
    start = start_line(spec, PLACEHOLDER, MODEL, keyless=None)
    lines = [f"### {spec.title}\n", f"`connect {name}`. Start: `{start}`\n"]
    for file, content in spec.files(spec.api, MODEL, ACCESS).items():
        language = _LANGUAGES.get(Path(file).suffix, "text")
        lines += [f"`{file}`:\n", f"```{language}\n{_shortened(content)}```\n"]
    return "\n".join(lines)


def _shortened(content: str) -> str:
    """Long strings, such as instructions, are cut."""
    return re.sub(r'"([^"\n]{60})[^"\n]{60,}"', r'"\1..."', content)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
