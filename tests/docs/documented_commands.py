"""Commands of the documentation, and the reasons why the suite cannot run some of them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.gateway_process import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("**/README.md")),
    *sorted((ROOT / "deploy").glob("**/*.md")),
    ROOT / "model_repository" / "README.md",
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:curl http|docker |pip install |\.venv/bin/openai-frontend )[^`]+)`")

# Pattern of `page: command` -> why no test runs it. The options of `openai-frontend` are parsed
# anyway (test_commands.py).
NOT_RUN = {
    r": make setup\b": "`make test` runs it before the suite",
    r": make test\b": "is the suite itself",
    r": make help\b": "prints a list; test_commands.py compares the targets",
    r": make serve\b": "tests/api/test_default_repository.py serves the same folder",
    r": make docs\b": "needs MkDocs, which is not part of the test set-up",
    r": make compat\b": "installs packages; .github/workflows runs it weekly",
    r"scripts.vllm_versions --wheel": "needs a wheel: tests/fast/engines/test_package_source.py",
    r": make core\b": "needs sources; tests/deploy/setup/test_build_core.py checks the rest",
    r"backends.md: (?:apt-get|git|for name in)": "needs the network",
    r"backends.md: openai-frontend serve --triton-library": "needs the output of `make core`",
    r": make bench\b": "takes minutes; .ci/run runs --quick",
    r"benchmarks\.peers": "takes minutes and downloads vLLM's wheel; the options are parsed",
    r"serve (?:ORG/MODEL|meta-llama/)": "needs a model of Hugging Face's hub",
    r"--kind (?:tensorrt_llm|llmapi)": "needs TensorRT-LLM; tests/medium/cli has stand-ins",
    r"tensorrt-llm.md: openai-frontend serve": "needs TensorRT-LLM",
    r": pip install 'openai-frontend": "the package is not in an index",
    r": pip install openai$": "the client is part of the set-up",
    r"install.md: ": "installs packages; tests/medium/cli/test_install_core.py runs pip",
    r"--jwks https:": "needs an identity provider",
    r"/etc/|systemctl": "needs root and systemd",
    r"ray.md: ": "needs a cluster; tests/scale/test_ray.py enters the same commands",
    r"disaggregation.md: (?:pip|VLLM|export)": "tests/scale/test_disaggregation.py starts the same",
    r"helm/openai-frontend/README.md: ": "needs a cluster; tests/scale renders the chart",
    r"kubernetes.md: ": "needs a cluster; tests/scale renders the chart",
    r": docker ": "needs Docker; tests/deploy reads the Dockerfile",
    r"pytest -m gpu": "needs a GPU and real models",
    r": (?:aiperf|genai-perf) ": "make test-clients runs them with smaller loads (`documented`)",
    r"multimodal.md: import base64": "tests/api/test_images.py runs it with an image",
    r"speech.md: ": "tests/api/backends/test_speech.py runs both with tones",
}


class Command(NamedTuple):
    """A command line, or the code of a Python block, and the output that the page shows."""

    page: str
    text: str
    language: str = "sh"
    output: str = ""

    @property
    def reason(self) -> str | None:
        """Why no test runs it; None if one does."""
        where = f"{self.page}: {self.text}"
        reasons = [why for pattern, why in NOT_RUN.items() if re.search(pattern, where)]
        return reasons[0] if reasons else None


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each code block."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands() -> Iterator[Command]:
    for page in PAGES:
        name = str(page.relative_to(ROOT)).removeprefix("docs/")
        for language, text in blocks(page):
            yield from _block_commands(name, language, text)
        prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
        yield from (Command(name, text) for text in INLINE.findall(prose))


def _block_commands(page: str, language: str, text: str) -> Iterator[Command]:
    if language == "python":
        yield Command(page, text, language)
    elif language == "console":
        for session in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, output = session.partition("\n")
            yield Command(page, command, output=output)
    elif language == "sh":
        joined = text.replace("\\\n", " ")
        yield from (Command(page, line) for line in joined.splitlines() if line)


COMMANDS = list(commands())
RUN = [command for command in COMMANDS if command.reason is None]
